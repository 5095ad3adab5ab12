------------------------------ MODULE Protocol ------------------------------
(***************************************************************************)
(* The life of transactions of one writer in the parquet layout: runs that *)
(* claim it, stage, prepare, publish by rename, commit, abort, recover and *)
(* sweep, each of them stopped or killed at any step, while the others go  *)
(* on.                                                                     *)
(*                                                                         *)
(* Promises: the invariants at the end, by the numbers of                  *)
(* txsink/protocol/__init__.py, in every state that the bounds reach.      *)
(* Relies on: Slots.tla, which shows that an append is atomic: here it is  *)
(* one step, which sees every entry before it.  A store call is one step.  *)
(* Does not promise: anything about power cuts, which the crash proof of   *)
(* the real code enumerates; about bytes, schemas, several writers.        *)
(*                                                                         *)
(* `Broken` names one rule that is switched off; "nothing" is the protocol *)
(* as it is.  A run never restarts: a process that starts again is the     *)
(* next run.  A zombie is a run that takes no step while others do.        *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  RunsMax,      \* runs are 1..RunsMax, started in this order
  EpochsMax,    \* epochs are 1..EpochsMax
  Parts,        \* the files of a transaction
  Overwrites,   \* the epochs that replace what was committed before
  Sweepers,     \* the runs that sweep
  Broken        \* the rule that is switched off

ASSUME Overwrites \subseteq 1..EpochsMax

Runs == 1..RunsMax
Epochs == 1..EpochsMax
Txs == Runs \X Epochs              \* a run prepares an epoch at most once
FilesOf(tx) == {<<tx[1], tx[2], part>> : part \in Parts}
FilesOfAll(txs) == UNION {FilesOf(tx) : tx \in txs}
Keeps(rule) == Broken # rule

VARIABLES
  holder,    \* the run that holds the writer; 0 before the first claim
  retired,   \* runs that were retired, by a claim or by a sweep
  pending,   \* prepared transactions, in the order of their entries
  begun,     \* those that have a `publishing` entry
  takes,     \* the files each transaction replaces
  commits,   \* committed transactions, in the order of their entries
  aborting,  \* aborted transactions whose files may still be there
  staged,    \* files in the staging root
  target,    \* files under their names in the table
  removed,   \* replaced files, where no reader looks
  task,      \* what each run is doing
  life,      \* of each run: "new", "alive", "dead"
  made,      \* transactions that were staged
  listed,    \* the staged files each run has listed for its sweep
  swept,     \* of each run's one sweep: "no", "listed", "done"
  alone,     \* the run that listed when nobody else was alive, since when nobody staged; 0: none
  damage     \* whether a run that holds the writer has found damage

log == <<holder, retired, pending, begun, takes, commits, aborting>>
disk == <<staged, target, removed>>
house == <<life, made, listed, swept, alone>>
vars == <<holder, retired, pending, begun, takes, commits, aborting, staged, target, removed,
          task, life, made, listed, swept, alone, damage>>

-----------------------------------------------------------------------------
\* What the log says.

Range(seq) == {seq[i] : i \in DOMAIN seq}
Pending == Range(pending)
Committed == Range(commits)
Last == IF commits = <<>> THEN 0 ELSE commits[Len(commits)][2]
IsPrepared(epoch) == \E tx \in Pending : tx[2] >= epoch
Taken(txs) == UNION {takes[tx] : tx \in txs}
Live == FilesOfAll(Committed) \ Taken(Committed)
Named == FilesOfAll(Pending)

\* fencing.standing: the run holds the writer, or has yet to claim it.
Holds(r) == holder = r
MayWrite(r) == Holds(r) \/ r \notin retired
TakeOver(r) == /\ holder' = r
               /\ retired' = retired \cup ({holder} \ {0, r})

\* Every step of a task: run r is alive, does this, and will do that.
Idle == [do |-> "idle"]
At(r, do) == life[r] = "alive" /\ task[r].do = do
Next_(r, next) == task' = [task EXCEPT ![r] = next]
Least(files) == CHOOSE f \in files : \A g \in files :
                  f[1] < g[1] \/ (f[1] = g[1] /\ (f[2] < g[2] \/ (f[2] = g[2] /\ f[3] <= g[3])))

-----------------------------------------------------------------------------
\* Runs come and go.

Start(r) ==
  /\ life[r] = "new"
  /\ \A other \in 1..(r - 1) : life[other] # "new"
  /\ life' = [life EXCEPT ![r] = "alive"]
  /\ alone' = 0
  /\ UNCHANGED <<log, disk, task, made, listed, swept, damage>>

Crash(r) ==      \* what only the dead knew is set back, so that fewer states differ
  /\ life[r] = "alive"
  /\ life' = [life EXCEPT ![r] = "dead"]
  /\ Next_(r, Idle)
  /\ listed' = [listed EXCEPT ![r] = {}]
  /\ swept' = [swept EXCEPT ![r] = "no"]
  /\ made' = made \cup {<<r, epoch>> : epoch \in Epochs}
  /\ UNCHANGED <<log, disk, alone, damage>>

\* A run that opens its writer has staged nothing yet.
Opens(r) == At(r, "idle") /\ \A tx \in made : tx[1] # r

Claim(r) ==      \* fencing.claim
  /\ Opens(r)
  /\ ~Holds(r) /\ MayWrite(r)
  /\ TakeOver(r)
  /\ UNCHANGED <<pending, begun, takes, commits, aborting, disk, task, house, damage>>

-----------------------------------------------------------------------------
\* Stage and prepare.

Stage(r, epoch) ==      \* stage.EpochStager, on any worker; nobody has to have claimed
  /\ At(r, "idle")
  /\ <<r, epoch>> \notin made
  /\ made' = made \cup {<<r, epoch>>}
  /\ staged' = staged \cup FilesOf(<<r, epoch>>)
  /\ alone' = 0
  /\ UNCHANGED <<log, target, removed, task, life, listed, swept, damage>>

Verify(r, epoch) ==      \* preparing.prepare, before its append: every staged file is there
  /\ At(r, "idle")
  /\ FilesOf(<<r, epoch>>) \subseteq staged
  /\ <<r, epoch>> \notin Pending
  /\ Next_(r, [do |-> "prepare", tx |-> <<r, epoch>>])
  /\ UNCHANGED <<log, disk, house, damage>>

Replaces(tx) ==      \* preparing._removes
  IF tx[2] \in Overwrites THEN (Live \cup FilesOfAll(Pending)) \ Taken(Pending) ELSE {}

Prepare(r) ==      \* preparing.prepare, its append: the claim may ride in it
  /\ At(r, "prepare")
  /\ LET tx == task[r].tx IN
     IF /\ MayWrite(r)
        /\ tx[2] > Last \/ ~Keeps("a replay is looked up")
        /\ ~IsPrepared(tx[2])
        /\ aborting = {} \/ ~Keeps("no prepare while an abort is unfinished")
     THEN /\ TakeOver(r)
          /\ pending' = Append(pending, tx)
          /\ takes' = [takes EXCEPT ![tx] = Replaces(tx)]
          /\ UNCHANGED <<begun, commits, aborting>>
     ELSE UNCHANGED log      \* fenced, a conflict, or committed already
  /\ Next_(r, Idle)
  /\ UNCHANGED <<disk, house, damage>>

Forget(r, epoch) ==      \* sweeping.forget
  /\ At(r, "idle")
  /\ <<r, epoch>> \in made
  /\ holder \in {0, r}
  /\ LET orphans == (FilesOf(<<r, epoch>>) \cap staged) \ Named IN
     /\ orphans # {}
     /\ Next_(r, [do |-> "drop", todo |-> orphans])
  /\ UNCHANGED <<log, disk, house, damage>>

-----------------------------------------------------------------------------
\* Publish and commit: resolving.roll_forward, by whoever holds the writer.

BeginPublish(r) ==
  /\ At(r, "idle")
  /\ Holds(r) /\ pending # <<>>
  /\ aborting = {} \/ ~Keeps("no publish while an abort is unfinished")
  /\ LET tx == Head(pending) IN
     IF takes[tx] # {}
     THEN /\ begun' = IF Keeps("a publishing entry before the first removal") THEN begun \cup {tx} ELSE begun
          /\ Next_(r, [do |-> "replace", tx |-> tx, todo |-> takes[tx]])
     ELSE /\ UNCHANGED begun
          /\ Next_(r, [do |-> IF Keeps("published before committed") THEN "look" ELSE "commit", tx |-> tx])
  /\ UNCHANGED <<holder, retired, pending, takes, commits, aborting, disk, house, damage>>

Replace(r) ==      \* publish.rename.replace
  /\ At(r, "replace")
  /\ LET file == Least(task[r].todo)
         left == task[r].todo \ {file} IN
     /\ removed' = IF file \in target THEN removed \cup {file} ELSE removed
     /\ target' = target \ {file}
     /\ Next_(r, IF left = {} THEN [do |-> IF Keeps("published before committed") THEN "look" ELSE "commit", tx |-> task[r].tx]
                 ELSE [task[r] EXCEPT !.todo = left])
  /\ UNCHANGED <<log, staged, house, damage>>

LookFirst(r) ==      \* publish.rename.ends: the staged name first
  /\ At(r, "look")
  /\ LET files == FilesOf(task[r].tx)
         there == IF Keeps("staged looked at before target") THEN files \cap staged ELSE files \cap target IN
     Next_(r, [do |-> "look again", tx |-> task[r].tx, there |-> there])
  /\ UNCHANGED <<log, disk, house, damage>>

LookAgain(r) ==      \* decision.decide for each file
  /\ At(r, "look again")
  /\ LET tx == task[r].tx
         isFirst == Keeps("staged looked at before target")
         inStaging == IF isFirst THEN task[r].there ELSE FilesOf(tx) \cap staged
         inTarget == IF isFirst THEN FilesOf(tx) \cap target ELSE task[r].there IN
     Next_(r, IF inStaging \cup inTarget # FilesOf(tx) THEN [do |-> "damage", tx |-> tx]
              ELSE [do |-> "link", tx |-> tx, todo |-> inStaging \ inTarget, gone |-> inStaging])
  /\ UNCHANGED <<log, disk, house, damage>>

Link(r) ==      \* store.local.move, its first half: never over another file
  /\ At(r, "link")
  /\ LET files == task[r].todo IN
     IF files = {}
     THEN /\ Next_(r, [do |-> "unlink", tx |-> task[r].tx, todo |-> task[r].gone])
          /\ UNCHANGED disk
     ELSE LET file == Least(files) IN
          IF file \in target \/ file \in staged
          THEN /\ target' = target \cup {file}
               /\ Next_(r, [task[r] EXCEPT !.todo = files \ {file}])
               /\ UNCHANGED <<staged, removed>>
          ELSE /\ Next_(r, [do |-> "damage", tx |-> task[r].tx])
               /\ UNCHANGED disk
  /\ UNCHANGED <<log, house, damage>>

Unlink(r) ==      \* store.local.move, its second half
  /\ At(r, "unlink")
  /\ LET files == task[r].todo IN
     IF files = {}
     THEN /\ IF Keeps("published before committed") THEN Next_(r, [do |-> "commit", tx |-> task[r].tx]) ELSE Next_(r, Idle)
          /\ UNCHANGED disk
     ELSE /\ staged' = staged \ {Least(files)}
          /\ Next_(r, [task[r] EXCEPT !.todo = files \ {Least(files)}])
          /\ UNCHANGED <<target, removed>>
  /\ UNCHANGED <<log, house, damage>>

Damage(r) ==      \* roll_forward: a fenced run finds files moved away, that is no damage
  /\ At(r, "damage")
  /\ damage' = (damage \/ (Holds(r) /\ task[r].tx \in Pending))
  /\ Next_(r, Idle)
  /\ UNCHANGED <<log, disk, house>>

Commit(r) ==      \* COMMIT POINT
  /\ At(r, "commit")
  /\ LET tx == task[r].tx IN
     /\ IF (Holds(r) \/ ~Keeps("the claim is the fence")) /\ tx \in Pending
        THEN /\ commits' = Append(commits, tx)
             /\ pending' = SelectSeq(pending, LAMBDA other : other # tx)
             /\ begun' = begun \ {tx}
        ELSE UNCHANGED <<commits, pending, begun>>
     /\ Next_(r, IF Keeps("published before committed") THEN Idle ELSE [do |-> "look", tx |-> tx])
  /\ UNCHANGED <<holder, retired, takes, aborting, disk, house, damage>>

-----------------------------------------------------------------------------
\* Abort: the entry, then staged files, then published ones, then `cleaned`.

AbortEntry(r, tx) ==
  /\ pending' = SelectSeq(pending, LAMBDA other : other # tx)
  /\ aborting' = aborting \cup {tx}
  /\ UNCHANGED <<holder, retired, begun, takes, commits>>

Abort(r, tx) ==      \* resolving.abort: not after its removals began
  /\ At(r, "idle")
  /\ Holds(r) /\ tx \in Pending /\ tx \notin begun
  /\ IF Keeps("an abort entry before the first deletion")
     THEN AbortEntry(r, tx) /\ UNCHANGED task
     ELSE /\ Next_(r, [do |-> "unstage", txs |-> {tx}, todo |-> FilesOf(tx)])
          /\ UNCHANGED log
  /\ UNCHANGED <<disk, house, damage>>

\* recovery.finish_aborts; the deletions are publish.rename.withdraw.
Clean(r) ==
  /\ At(r, "idle")
  /\ Holds(r) /\ aborting # {}
  /\ LET first == IF Keeps("staged deleted before published") THEN "unstage" ELSE "unpublish" IN
     IF Keeps("cleaned comes last")
     THEN /\ Next_(r, [do |-> first, txs |-> aborting, todo |-> FilesOfAll(aborting)])
          /\ UNCHANGED log
     ELSE /\ Next_(r, [do |-> first, txs |-> aborting, todo |-> FilesOfAll(aborting)])
          /\ aborting' = {}
          /\ UNCHANGED <<holder, retired, pending, begun, takes, commits>>
  /\ UNCHANGED <<disk, house, damage>>

After(r, do) ==      \* what follows the deletions of this kind
  LET order == IF Keeps("staged deleted before published") THEN <<"unstage", "unpublish">> ELSE <<"unpublish", "unstage">> IN
  IF do = order[1] THEN [do |-> order[2], txs |-> task[r].txs, todo |-> FilesOfAll(task[r].txs)]
  ELSE [do |-> "cleaned", txs |-> task[r].txs]

Unstage(r) ==
  /\ At(r, "unstage")
  /\ LET file == Least(task[r].todo)
         left == task[r].todo \ {file} IN
     /\ staged' = staged \ {file}
     /\ Next_(r, IF left = {} THEN After(r, "unstage") ELSE [task[r] EXCEPT !.todo = left])
  /\ UNCHANGED <<log, target, removed, house, damage>>

Unpublish(r) ==
  /\ At(r, "unpublish")
  /\ LET file == Least(task[r].todo)
         left == task[r].todo \ {file} IN
     /\ target' = target \ {file}
     /\ Next_(r, IF left = {} THEN After(r, "unpublish") ELSE [task[r] EXCEPT !.todo = left])
  /\ UNCHANGED <<log, staged, removed, house, damage>>

Cleaned(r) ==      \* whoever has done the deletions may say so
  /\ At(r, "cleaned")
  /\ IF Keeps("an abort entry before the first deletion")
     THEN /\ aborting' = aborting \ task[r].txs
          /\ UNCHANGED <<holder, retired, pending, begun, takes, commits>>
     ELSE IF Holds(r)
     THEN /\ pending' = SelectSeq(pending, LAMBDA other : other \notin task[r].txs)
          /\ UNCHANGED <<holder, retired, begun, takes, commits, aborting>>
     ELSE UNCHANGED log
  /\ Next_(r, Idle)
  /\ UNCHANGED <<disk, house, damage>>

-----------------------------------------------------------------------------
\* Sweep: list, then read the log, then retire runs that never claimed, then delete.

List(r) ==      \* opening.open_sink, before or after its claim
  /\ Opens(r)
  /\ r \in Sweepers /\ swept[r] = "no"
  /\ listed' = [listed EXCEPT ![r] = staged]
  /\ swept' = [swept EXCEPT ![r] = "listed"]
  /\ alone' = IF \A other \in Runs \ {r} : life[other] # "alive" THEN r ELSE 0
  /\ UNCHANGED <<log, disk, task, life, made, damage>>

Sweep(r) ==      \* sweeping.sweep: the claim that retires, then what pending entries name
  /\ At(r, "idle")
  /\ swept[r] = "listed" /\ Holds(r)
  /\ LET owners == {f[1] : f \in listed[r]} \ {r} IN
     /\ IF Keeps("a run that never claimed is retired before it is swept")
        THEN retired' = retired \cup owners
        ELSE UNCHANGED retired
     /\ LET doomed == {f \in listed[r] : f[1] \in owners /\ f \notin Named} IN
        Next_(r, IF doomed = {} THEN Idle ELSE [do |-> "drop", todo |-> doomed])
  /\ listed' = [listed EXCEPT ![r] = {}]
  /\ swept' = [swept EXCEPT ![r] = "done"]
  /\ UNCHANGED <<holder, pending, begun, takes, commits, aborting, disk, life, made, alone, damage>>

Drop(r) ==      \* publish.rename.drop
  /\ At(r, "drop")
  /\ LET file == Least(task[r].todo)
         left == task[r].todo \ {file} IN
     /\ staged' = staged \ {file}
     /\ Next_(r, IF left = {} THEN Idle ELSE [task[r] EXCEPT !.todo = left])
  /\ UNCHANGED <<log, target, removed, house, damage>>

-----------------------------------------------------------------------------
Init ==
  /\ holder = 0 /\ retired = {} /\ pending = <<>> /\ begun = {} /\ commits = <<>> /\ aborting = {}
  /\ takes = [tx \in Txs |-> {}]
  /\ staged = {} /\ target = {} /\ removed = {}
  /\ task = [r \in Runs |-> Idle]
  /\ life = [r \in Runs |-> "new"]
  /\ made = {} /\ alone = 0 /\ damage = FALSE
  /\ listed = [r \in Runs |-> {}]
  /\ swept = [r \in Runs |-> "no"]

Step(r) ==
  \/ Start(r) \/ Crash(r) \/ Claim(r)
  \/ \E epoch \in Epochs : Stage(r, epoch) \/ Verify(r, epoch) \/ Forget(r, epoch)
  \/ Prepare(r) \/ BeginPublish(r) \/ Replace(r) \/ LookFirst(r) \/ LookAgain(r)
  \/ Link(r) \/ Unlink(r) \/ Damage(r) \/ Commit(r)
  \/ \E tx \in Pending : Abort(r, tx)
  \/ Clean(r) \/ Unstage(r) \/ Unpublish(r) \/ Cleaned(r)
  \/ List(r) \/ Sweep(r) \/ Drop(r)

Next == \E r \in Runs : Step(r)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* The invariants, as an observer of the log and of the directory has them.

\* The files that may be missing from the directory: a publish is taking them away.
Leaving == Taken(begun)

I1_NoRowTwice == \A f, g \in target : f[2] = g[2] => f[1] = g[1]
I1_NoRowLost == Live \ Leaving \subseteq target
I1_OnlyPreparedRows == target \subseteq FilesOfAll(Committed) \cup Named \cup FilesOfAll(aborting)
I1_ReplacedRowsAreGone == \A tx \in Committed : takes[tx] \cap target = {}
I2_WholeEpochs == \A tx \in Committed : FilesOf(tx) \subseteq target \cup Leaving \cup Taken(Committed)
I4_EpochsGrow == \A i, j \in DOMAIN commits : i < j => commits[i][2] < commits[j][2]
I5_OneCommitAnEpoch == \A i, j \in DOMAIN commits : commits[i][2] = commits[j][2] => i = j
I6_CommittedFilesExist == Live \subseteq target \cup removed
I6_NoFalseAlarm == ~damage
I8_NamedFilesExist == /\ Named \subseteq staged \cup target
                      /\ Taken(Committed) \cap FilesOfAll(Committed) \subseteq removed

\* I9, I12: one run alone has recovered and swept; what is left is a function of the log, so doing it again changes nothing.
Quiet(r) == /\ alone = r /\ swept[r] = "done" /\ At(r, "idle") /\ Holds(r)
            /\ pending = <<>> /\ aborting = {}
            /\ \A other \in Runs \ {r} : life[other] # "alive"
I9_NothingIsLeft == \A r \in Runs : Quiet(r) => \A f \in staged : f[1] = r
I12_RecoveredIsAFunctionOfTheLog == \A r \in Runs : Quiet(r) => target = Live /\ begun = {}

\* I10: a commit is a step of the run that holds the writer.  (What a retired run deletes, nobody needs: I8.)
I10_OnlyTheHolderCommits == [][
    commits' # commits => task[holder].do = "commit" /\ task'[holder] # task[holder] ]_vars

\* Seen: a model in which these never happen would prove nothing.  TLC must find each of them.
Seen_RolledForwardByANewerRun == ~ \E tx \in Committed : tx[1] \in retired /\ life[tx[1]] = "dead"
Seen_AbortedAndWrittenAgain == ~ \E a \in made : \E tx \in Committed :
    a # tx /\ a[2] = tx[2] /\ FilesOf(a) \cap (staged \cup target \cup Named) = {} /\ life[a[1]] = "alive"
Seen_OverwriteOfAnotherRunsRows == ~ \E tx \in Committed : \E f \in takes[tx] : f[1] # tx[1] /\ f \in removed
Seen_ZombieFindsItsFilesGone == ~ \E r \in retired : At(r, "damage")
Seen_SweptAloneAfterACrash == ~ \E r \in Runs : Quiet(r) /\ Committed # {} /\ \E f \in made : life[f[1]] = "dead"
=============================================================================
