-------------------------------- MODULE Delta --------------------------------
(***************************************************************************)
(* The publish of the delta layout: the table's own log and Delta's are    *)
(* two logs, and each transaction must end the same way in both.           *)
(*                                                                         *)
(* Promises: what Delta shows and what the log says agree, in every state  *)
(* that the bounds reach: runs stalled or killed at any step, answers of   *)
(* Delta commits lost or late, foreign commits in between.                 *)
(* Relies on: Slots.tla for appends to the table's log; Delta's rule that  *)
(* a commit is refused when a commit after its snapshot has the same app   *)
(* id, and is made anew on top of any other.                               *)
(* Does not promise: clean-up of files that were never prepared, which is  *)
(* as in Protocol.tla; foreign commits that use our app id.                *)
(*                                                                         *)
(* v is the version of the prepare entry.  Our app id has the value 2v for *)
(* `published` and 2v + 1 for `poisoned`: nobody can publish it any more.  *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  RunsMax,      \* runs are 1..RunsMax, started in this order
  EpochsMax,    \* epochs are 1..EpochsMax
  ForeignMax,   \* commits by others
  LossesMax,    \* answers of Delta commits that are lost or late
  Broken        \* the rule that is switched off

Runs == 1..RunsMax
Epochs == 1..EpochsMax
Keeps(rule) == Broken # rule

VARIABLES
  holder, retired,   \* as in Protocol.tla
  version,           \* the newest version of the table's log, as far as prepare entries count
  pending,           \* prepared transactions [run, epoch, v], in the order of their entries
  commits,           \* committed transactions, in the order of their entries
  aborted,           \* aborted transactions
  files,             \* transactions whose files are there
  delta,             \* Delta's log: the value of our app id that each commit sets (0: none), and what it adds
  flying,            \* Delta commits whose client has given up on them, and which may land still
  task, life, made, lost

vars == <<holder, retired, version, pending, commits, aborted, files, delta, flying, task, life, made, lost>>
log == <<holder, retired, version, pending, commits, aborted>>

Range(seq) == {seq[i] : i \in DOMAIN seq}
Pending == Range(pending)
Committed == Range(commits)
Last == IF commits = <<>> THEN 0 ELSE commits[Len(commits)].epoch
Holds(r) == holder = r
MayWrite(r) == Holds(r) \/ r \notin retired
TakeOver(r) == holder' = r /\ retired' = retired \cup ({holder} \ {0, r})
Idle == [do |-> "idle"]
At(r, do) == life[r] = "alive" /\ task[r].do = do
Turn(r, next) == task' = [task EXCEPT ![r] = next]

\* What Delta's log shows.
Visible == UNION {delta[i].adds : i \in DOMAIN delta}
ValueAt(snapshot) == LET ours == {i \in 1..snapshot : delta[i].value > 0} IN
                     IF ours = {} THEN 0 ELSE delta[CHOOSE i \in ours : \A j \in ours : j <= i].value
Conflicts(snapshot) == \E i \in (snapshot + 1)..Len(delta) : delta[i].value > 0
Published(tx) == 2 * tx.v
Poisoned(tx) == IF Keeps("two values for two outcomes") THEN 2 * tx.v + 1 ELSE 2 * tx.v

-----------------------------------------------------------------------------
Start(r) ==
  /\ life[r] = "new"
  /\ \A other \in 1..(r - 1) : life[other] # "new"
  /\ life' = [life EXCEPT ![r] = "alive"]
  /\ UNCHANGED <<log, files, delta, flying, task, made, lost>>

Crash(r) ==
  /\ life[r] = "alive"
  /\ life' = [life EXCEPT ![r] = "dead"]
  /\ Turn(r, Idle)
  /\ made' = made \cup {<<r, epoch>> : epoch \in Epochs}
  /\ UNCHANGED <<log, files, delta, flying, lost>>

Claim(r) ==
  /\ At(r, "idle") /\ ~Holds(r) /\ MayWrite(r)
  /\ TakeOver(r)
  /\ UNCHANGED <<version, pending, commits, aborted, files, delta, flying, task, life, made, lost>>

Prepare(r, epoch) ==      \* files staged under their final names, then the entry
  /\ At(r, "idle") /\ MayWrite(r)
  /\ <<r, epoch>> \notin made
  /\ epoch > Last /\ \A tx \in Pending : tx.epoch < epoch
  /\ TakeOver(r)
  /\ LET tx == [run |-> r, epoch |-> epoch, v |-> version + 1] IN
     /\ pending' = Append(pending, tx)
     /\ files' = files \cup {tx}
  /\ version' = version + 1
  /\ made' = made \cup {<<r, epoch>>}
  /\ UNCHANGED <<commits, aborted, delta, flying, task, life, lost>>

-----------------------------------------------------------------------------
\* Resolve one transaction: the oldest, unless that rule is broken.

Begin(r) ==
  /\ At(r, "idle") /\ Holds(r)
  /\ \E tx \in Pending : /\ tx = Head(pending) \/ ~Keeps("resolved in the order of their entries")
                         /\ \E want \in {"publish", "abort"} : Turn(r, [do |-> "snapshot", tx |-> tx, want |-> want])
  /\ UNCHANGED <<log, files, delta, flying, life, made, lost>>

Snapshot(r) ==      \* the value, from a fresh snapshot; the table of section 6
  /\ At(r, "snapshot")
  /\ LET tx == task[r].tx
         value == ValueAt(Len(delta)) IN
     Turn(r, IF task[r].want = "abort" /\ ~Keeps("poisoned before the abort entry")
             THEN [do |-> "append", tx |-> tx, kind |-> "abort"]
             ELSE IF value < 2 * tx.v \/ (task[r].want = "publish" /\ ~Keeps("the value is looked at before a publish"))
                                      \/ (task[r].want = "abort" /\ value = 2 * tx.v /\ ~Keeps("an abort rolls forward what has landed"))
             THEN [do |-> "commit", tx |-> tx, want |-> task[r].want, snapshot |-> Len(delta)]
             ELSE IF value = 2 * tx.v THEN [do |-> "append", tx |-> tx, kind |-> "commit"]
             ELSE IF value = 2 * tx.v + 1 THEN [do |-> "append", tx |-> tx, kind |-> "abort"]
             ELSE Idle)      \* resolved by somebody: the log says how
  /\ UNCHANGED <<log, files, delta, flying, life, made, lost>>

Entry(r) == LET tx == task[r].tx IN
  IF task[r].want = "publish" THEN [value |-> Published(tx), adds |-> {tx}] ELSE [value |-> Poisoned(tx), adds |-> {}]

Outcome(want) == IF want = "publish" THEN "commit" ELSE "abort"

DeltaCommit(r) ==
  /\ At(r, "commit")
  /\ LET again == [do |-> "snapshot", tx |-> task[r].tx, want |-> task[r].want]
         done == [do |-> "append", tx |-> task[r].tx, kind |-> Outcome(task[r].want)] IN
     IF Conflicts(task[r].snapshot) /\ Keeps("committed from the snapshot that was read")
     THEN Turn(r, again) /\ UNCHANGED <<delta, flying, lost>>
     ELSE \/ /\ delta' = Append(delta, Entry(r))
             /\ Turn(r, done)
             /\ UNCHANGED <<flying, lost>>
          \/ /\ lost < LossesMax /\ lost' = lost + 1      \* no answer: look again
             /\ Turn(r, again)
             /\ \/ delta' = Append(delta, Entry(r)) /\ UNCHANGED flying
                \/ flying' = flying \cup {[at |-> Len(delta) + 1, entry |-> Entry(r)]} /\ UNCHANGED delta
                \/ UNCHANGED <<delta, flying>>
  /\ UNCHANGED <<log, files, life, made>>

LandLate ==      \* the request of somebody who has given up: put-if-absent of one version
  /\ \E put \in flying :
       /\ flying' = flying \ {put}
       /\ delta' = IF put.at = Len(delta) + 1 THEN Append(delta, put.entry) ELSE delta
  /\ UNCHANGED <<log, files, task, life, made, lost>>

Foreign ==
  /\ Cardinality({i \in DOMAIN delta : delta[i].value = 0}) < ForeignMax
  /\ delta' = Append(delta, [value |-> 0, adds |-> {}])
  /\ UNCHANGED <<log, files, flying, task, life, made, lost>>

AppendEntry(r) ==      \* the commit or abort entry; a fenced run appends nothing
  /\ At(r, "append")
  /\ LET tx == task[r].tx IN
     IF Holds(r) /\ tx \in Pending
     THEN /\ pending' = SelectSeq(pending, LAMBDA other : other # tx)
          /\ IF task[r].kind = "commit" THEN commits' = Append(commits, tx) /\ UNCHANGED aborted
             ELSE aborted' = aborted \cup {tx} /\ UNCHANGED commits
     ELSE UNCHANGED <<pending, commits, aborted>>
  /\ Turn(r, Idle)
  /\ UNCHANGED <<holder, retired, version, files, delta, flying, life, made, lost>>

Clean(r) ==
  /\ At(r, "idle") /\ Holds(r)
  /\ files \cap aborted # {}
  /\ files' = files \ aborted
  /\ UNCHANGED <<log, delta, flying, task, life, made, lost>>

-----------------------------------------------------------------------------
Init ==
  /\ holder = 0 /\ retired = {} /\ version = 0 /\ pending = <<>> /\ commits = <<>> /\ aborted = {} /\ files = {}
  /\ delta = <<>> /\ flying = {} /\ made = {} /\ lost = 0
  /\ task = [r \in Runs |-> Idle]
  /\ life = [r \in Runs |-> "new"]

Next ==
  \/ LandLate \/ Foreign
  \/ \E r \in Runs :
       \/ Start(r) \/ Crash(r) \/ Claim(r) \/ Begin(r) \/ Snapshot(r) \/ DeltaCommit(r) \/ AppendEntry(r) \/ Clean(r)
       \/ \E epoch \in Epochs : Prepare(r, epoch)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
I1_CommittedRowsAreVisible == Committed \subseteq Visible
I1_AbortedRowsAreNot == aborted \cap Visible = {}
I1_OnlyPreparedRows == Visible \subseteq Committed \cup Pending
I2_AddedOnce == \A i, j \in DOMAIN delta : delta[i].adds \cap delta[j].adds # {} => i = j
I4_EpochsGrow == \A i, j \in DOMAIN commits : i < j => commits[i].epoch < commits[j].epoch
I5_OneVisibleTransactionAnEpoch == \A a, b \in Visible : a.epoch = b.epoch => a = b
I6_VisibleFilesExist == Visible \subseteq files
I10_RetiredRunsAreFenced == holder \notin retired
\* I9, I12: once nothing is pending, Delta shows what the log says, and nothing else is left.
I12_BothLogsAgree == pending = <<>> => Visible = Committed
\* A value above both of a transaction's says that it was resolved; so nobody is left waiting.
I14_NothingIsStuck == \A tx \in Pending : ValueAt(Len(delta)) <= 2 * tx.v + 1
\* The value never goes back: who reads it knows how every transaction up to it ended.
I7_ValueGrows == \A i, j \in DOMAIN delta : i < j /\ delta[i].value > 0 /\ delta[j].value > 0 => delta[i].value < delta[j].value

Seen_PublishedByOneCommittedByAnother == ~ \E tx \in Committed : tx.run \in retired
Seen_PoisonedAndWrittenAgain == ~ \E a \in aborted : \E tx \in Committed : a.epoch = tx.epoch
Seen_LandedLateAndRolledForward == ~ (lost > 0 /\ flying = {} /\ Cardinality(Committed) = EpochsMax)
=============================================================================
