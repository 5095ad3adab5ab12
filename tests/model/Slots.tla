-------------------------------- MODULE Slots --------------------------------
(***************************************************************************)
(* The slots of a log: appending by put-if-absent whose answer may be lost *)
(* or late, reading, and expiry, by processes that stall and die anywhere. *)
(*                                                                         *)
(* Promises: an append is what Protocol.tla takes it for: one step, made   *)
(* once, right after every entry before it (I3, I7, I11, I13).             *)
(* Relies on: a store whose put-if-absent makes an object whole, once.     *)
(* Does not promise: anything about power cuts (the crash proof of the     *)
(* real code cuts them), about summaries and segments but for their states.*)
(*                                                                         *)
(* An entry is its write id and that of the entry before it: equal write   *)
(* ids stand for equal digests.  A process that starts again is another.   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Procs,        \* the processes
  VersionMax,   \* slots are 1..VersionMax
  AppendsMax,   \* appends each process makes, but for process 1, which makes one
  LossesMax,    \* answers that are lost, in all
  RestoresMax,  \* how often the table is restored from a copy of an earlier version, under processes that live on
  KeepsNames,   \* whether an expired entry is overwritten (S3), not deleted
  Broken        \* the rule that is switched off

None == [id |-> <<0, 1>>]
Expired == [id |-> <<0, 2>>]
Versions == 1..VersionMax
Genesis == [at |-> 0, id |-> <<0, 0>>]
Keeps(rule) == Broken # rule
Budget(p) == IF p = 1 THEN 1 ELSE AppendsMax

VARIABLES
  slot,      \* what lies in each slot
  flying,    \* puts whose client gave up on them, or died, and which may land still
  hint,      \* the newest state somebody wrote down, with what it says of the boundary
  kept,      \* summaries: states written down for good, until expiry
  history,   \* the entries of the log, as they were appended
  proc,      \* of each process: what it knows and does
  lost,      \* answers lost so far
  restored,  \* how often the table was restored so far
  told       \* appends that were acknowledged: version and write id

vars == <<slot, flying, hint, kept, history, proc, lost, told, restored>>

Entry(p) == [id |-> <<p, proc[p].tries>>, op |-> <<p, proc[p].appends>>, prev |-> proc[p].state.id, below |-> proc[p].below]
Set(p, new) == proc' = [proc EXCEPT ![p] = new]
Is(p, do) == proc[p].do = do
\* The boundary that a state knows of is part of it.
StateAfter(state, entry) == [at |-> state.at + 1, id |-> entry.id]
BoundaryOf(version) == IF version = 0 THEN 0
  ELSE LET found == {0} \cup {history[v].below : v \in {w \in 1..version : w <= Len(history)}} IN CHOOSE b \in found : \A c \in found : c <= b
Taken(v) == slot[v] # None
DigestAt(v) == IF v = 0 THEN Genesis.id ELSE IF v > VersionMax THEN None.id ELSE slot[v].id
Acknowledged == IF told = {} THEN 0 ELSE (CHOOSE a \in told : \A b \in told : b.at <= a.at).at
Newest == LET agreeing == {s \in kept \cup {hint} \cup (IF restored > 0 THEN {Genesis} ELSE {}) : s.at = 0 \/ DigestAt(s.at) = s.id} IN
          CHOOSE s \in agreeing : \A other \in agreeing : other.at <= s.at

-----------------------------------------------------------------------------
\* log.Log.refresh

Read(p) ==      \* one slot after the other
  /\ Is(p, "read")
  /\ LET at == proc[p].state.at + 1 IN
     IF at > VersionMax \/ slot[at] = None
     THEN Set(p, [proc[p] EXCEPT !.do = IF KeepsNames \/ ~Keeps("the start looked at again after reading")
                                         THEN "decide" ELSE "look at start"])
     ELSE IF slot[at] = Expired THEN Set(p, [proc[p] EXCEPT !.do = "reload"])
     ELSE IF slot[at].prev # proc[p].state.id THEN Set(p, [proc[p] EXCEPT !.do = "look at start"])   \* a broken chain: behind, or damage
     ELSE Set(p, [proc[p] EXCEPT !.state = StateAfter(@, slot[at])])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

LookAtStart(p) ==      \* log.Log._is_behind
  /\ Is(p, "look at start")
  /\ Set(p, [proc[p] EXCEPT !.do = IF proc[p].start.at = 0
                                   THEN IF Newest.at > proc[p].state.at THEN "reload" ELSE "decide"
                                   ELSE IF DigestAt(proc[p].start.at) = proc[p].start.id THEN "decide" ELSE "reload"])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

Reload(p) ==      \* log.Log._reload
  /\ Is(p, "reload")
  /\ IF restored > 0 /\ Newest.at <= proc[p].start.at
     THEN Set(p, [proc[p] EXCEPT !.do = "dead"])      \* gaps.went_back: an error that says so
     ELSE Set(p, [proc[p] EXCEPT !.do = "read", !.state = Newest, !.start = Newest])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

-----------------------------------------------------------------------------
\* log.Log.append and slots.Slots.put

\* Every put of an entry into a slot, whoever is left to hear the answer.
Land(v, entry) ==
  /\ slot' = [slot EXCEPT ![v] = entry]
  /\ history' = IF v = Len(history) + 1 THEN Append(history, entry) ELSE history

Decide(p) ==      \* `make` says what is to be appended, if anything
  /\ Is(p, "decide")
  /\ IF \E v \in 1..proc[p].state.at : Keeps("an entry of one's own is recognised") /\ v <= Len(history) /\ history[v].op = <<p, proc[p].appends>>
     THEN Set(p, [proc[p] EXCEPT !.do = "idle", !.appends = @ + 1])   \* its own entry, seen while it read: done
     ELSE IF proc[p].state.at < VersionMax
     THEN Set(p, [proc[p] EXCEPT !.do = IF RestoresMax > 0 THEN "look" ELSE "put", !.tries = @ + 1])
     ELSE Set(p, [proc[p] EXCEPT !.do = "idle", !.appends = Budget(p)])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

Look(p) ==      \* log.Log.is_as_read: the newest entry known must still be there
  /\ Is(p, "look")
  /\ Set(p, [proc[p] EXCEPT !.do = IF \/ DigestAt(proc[p].state.at) = proc[p].state.id
                                       \/ ~Keeps("the newest entry looked at before a put") THEN "put" ELSE "reload"])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

Put(p) ==
  /\ Is(p, "put")
  /\ LET v == proc[p].state.at + 1
         entry == Entry(p) IN
     \/ IF Taken(v)      \* the answer comes
        THEN /\ Set(p, [proc[p] EXCEPT !.do = "read back"])
             /\ UNCHANGED <<slot, history, flying, lost>>
        ELSE /\ Land(v, entry)
             /\ Set(p, [proc[p] EXCEPT !.do = "created"])
             /\ UNCHANGED <<flying, lost>>
     \/ /\ lost < LossesMax      \* the answer is lost: it was done, or not, or will be later
        /\ lost' = lost + 1
        /\ \/ /\ ~Taken(v) /\ Land(v, entry) /\ UNCHANGED flying
           \/ UNCHANGED <<slot, history, flying>>
           \/ flying' = flying \cup {[at |-> v, entry |-> entry]} /\ UNCHANGED <<slot, history>>
        /\ Set(p, [proc[p] EXCEPT !.do = IF Keeps("an unknown answer is no success") THEN "read back" ELSE "created"])
  /\ UNCHANGED <<hint, kept, told>>

\* Where names are deleted, a put is a file that is moved to its name: once it has landed, no move finds it.
HasLanded(entry) == ~KeepsNames /\ \E v \in DOMAIN history : history[v].id = entry.id

LandLate ==
  /\ \E put \in flying :
       /\ flying' = flying \ {put}
       /\ IF Taken(put.at) \/ (HasLanded(put.entry) /\ Keeps("a put lands once")) THEN UNCHANGED <<slot, history>> ELSE Land(put.at, put.entry)
  /\ UNCHANGED <<hint, kept, proc, lost, told>>

ReadBack(p) ==      \* `exists` or no answer: whose is it?
  /\ Is(p, "read back")
  /\ LET v == proc[p].state.at + 1 IN
     Set(p, [proc[p] EXCEPT !.do =
       IF ~Taken(v) THEN "put"      \* the same put again, with the same write id
       ELSE IF slot[v].id = Entry(p).id /\ Keeps("an entry of one's own is recognised") THEN "created"
       ELSE "again"])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

Again(p) ==      \* the race is lost: read on, decide again
  /\ Is(p, "again")
  /\ Set(p, [proc[p] EXCEPT !.do = "read", !.start = proc[p].state])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

LookAtNeighbour(p) ==      \* log.Log._stands: the entry before must still be there
  /\ Is(p, "created")
  /\ LET entry == Entry(p)
         stands == \/ KeepsNames \/ ~Keeps("the neighbour looked at after an append")
                   \/ IF proc[p].state.at = 0 THEN Newest.at <= 0 ELSE DigestAt(proc[p].state.at) = proc[p].state.id IN
     IF stands
     THEN /\ told' = told \cup {[at |-> proc[p].state.at + 1, id |-> entry.id]}
          /\ Set(p, [proc[p] EXCEPT !.state = StateAfter(@, entry), !.appends = @ + 1,
                                    !.do = IF proc[p].below > 0 THEN "keep hint" ELSE "idle"])
     ELSE /\ Set(p, [proc[p] EXCEPT !.do = "reload"])
          /\ UNCHANGED told
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost>>

-----------------------------------------------------------------------------
\* What a process begins to do when it has nothing to do.

BeginAppend(p) ==
  /\ Is(p, "idle") /\ proc[p].appends < Budget(p)
  /\ Set(p, [proc[p] EXCEPT !.do = "read", !.start = proc[p].state, !.floor = Acknowledged, !.below = 0])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

Summarise(p) ==      \* log.Log.summarise, off the commit path: by anybody, at any later time
  /\ Is(p, "idle") /\ proc[p].state.at > 0
  /\ \A s \in kept : s.at # proc[p].state.at
  /\ kept' = kept \cup {proc[p].state}
  /\ UNCHANGED <<slot, flying, hint, history, proc, lost, told>>

WriteHint(p) ==      \* log.Log.hint: a stalled process may set it back
  /\ Is(p, "idle") /\ hint # proc[p].state
  /\ hint' = proc[p].state
  /\ UNCHANGED <<slot, flying, kept, history, proc, lost, told>>

-----------------------------------------------------------------------------
\* expiry.expire: boundary in the log, newest state as the hint, then deletions, oldest first

BeginExpire(p) ==
  /\ Is(p, "idle") /\ proc[p].appends < Budget(p)
  /\ \E s \in kept : /\ s.at > BoundaryOf(proc[p].state.at) /\ s.at <= proc[p].state.at
                     /\ Set(p, [proc[p] EXCEPT !.do = "read", !.start = proc[p].state, !.floor = Acknowledged, !.below = s.at])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

KeepHint(p) ==
  /\ Is(p, "keep hint")
  /\ hint' = proc[p].state
  /\ Set(p, [proc[p] EXCEPT !.do = "delete", !.left = {v \in Versions : v < proc[p].below /\ slot[v] \notin {None, Expired}}])
  /\ UNCHANGED <<slot, flying, kept, history, lost, told>>

Delete(p) ==      \* expiry._expire_below
  /\ Is(p, "delete")
  /\ LET left == proc[p].left
         v == IF Keeps("oldest deleted first") THEN CHOOSE v \in left : \A other \in left : v <= other
              ELSE CHOOSE v \in left : \A other \in left : v >= other IN
     IF left = {}
     THEN /\ Set(p, [proc[p] EXCEPT !.do = "idle", !.below = 0, !.floor = 0])
          /\ kept' = {s \in kept : s.at >= proc[p].below}
          /\ UNCHANGED slot
     ELSE /\ slot' = [slot EXCEPT ![v] = IF KeepsNames /\ Keeps("expired names stay taken") THEN Expired ELSE None]
          /\ Set(p, [proc[p] EXCEPT !.left = left \ {v}])
          /\ UNCHANGED kept
  /\ UNCHANGED <<flying, hint, history, lost, told>>

Die(p) ==      \* a put that was on its way may land later: see Put; another process takes its place
  /\ proc[p].do \notin {"idle", "dead"}
  /\ Set(p, [proc[p] EXCEPT !.do = "dead"])
  /\ UNCHANGED <<slot, flying, hint, kept, history, lost, told>>

\* Somebody puts a copy of an earlier version in the table's place. Not between a look and its put, nor in an expiry: decision 14.
Restore(v) ==
  /\ restored < RestoresMax /\ v < Len(history)
  /\ \A p \in Procs : proc[p].do \notin {"put", "read back", "created", "keep hint", "delete"}
  /\ slot' = [at \in Versions |-> IF at > v THEN None ELSE IF at < BoundaryOf(v) THEN slot[at] ELSE history[at]]
  /\ history' = SubSeq(history, 1, v)
  /\ hint' = IF hint.at > v THEN Genesis ELSE hint
  /\ kept' = {s \in kept : s.at <= v} \cup (IF BoundaryOf(v) > 0 THEN {[at |-> v, id |-> history[v].id]} ELSE {})
  /\ told' = {a \in told : a.at <= v}      \* what was acknowledged since is not in the copy
  /\ flying' = {}
  /\ proc' = [p \in Procs |-> [proc[p] EXCEPT !.floor = 0]]
  /\ restored' = restored + 1
  /\ UNCHANGED lost

-----------------------------------------------------------------------------
Init ==
  /\ slot = [v \in Versions |-> None]
  /\ flying = {} /\ kept = {} /\ hint = Genesis /\ history = <<>> /\ lost = 0 /\ told = {} /\ restored = 0
  /\ proc = [p \in Procs |-> [do |-> "idle", state |-> Genesis, start |-> Genesis, tries |-> 0, appends |-> 0,
                              below |-> 0, left |-> {}, floor |-> 0]]

Next ==
  \/ \E v \in 0..VersionMax : Restore(v)
  \/ /\ UNCHANGED restored
     /\ \/ LandLate
        \/ \E p \in Procs :
             \/ Read(p) \/ LookAtStart(p) \/ Reload(p) \/ Decide(p) \/ Look(p) \/ Put(p) \/ ReadBack(p) \/ Again(p) \/ LookAtNeighbour(p)
             \/ BeginAppend(p) \/ Summarise(p) \/ WriteHint(p) \/ BeginExpire(p) \/ KeepHint(p) \/ Delete(p) \/ Die(p)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
I7_Chain == \A v \in 2..Len(history) : history[v].prev = history[v - 1].id
I7_OneEntryAVersion == \A a, b \in told : a.at = b.at => a = b
I3_AcknowledgedIsInTheLog == \A a \in told : a.at <= Len(history) /\ history[a.at].id = a.id
I5_AppendedOnce == \A v, w \in 1..Len(history) : history[v].op = history[w].op => v = w
\* Who has read to the end, or appends, is on the log, whatever stands in slots that have expired.
\* Of a table that was restored: who is about to put.
I13_ReadersAreOnTheLog == \A p \in Procs :
    proc[p].do \in (IF restored = 0 THEN {"decide", "put", "idle", "keep hint", "delete"} ELSE {"put"}) =>
    LET state == proc[p].state IN state.at = 0 \/ (state.at <= Len(history) /\ history[state.at].id = state.id)
\* A reader sees what had been acknowledged when it began.
I3_ReadersSeeWhatWasAcknowledged == \A p \in Procs : Is(p, "decide") => proc[p].state.at >= proc[p].floor
\* Nothing that is retained is gone.
I8_RetainedEntriesStand == \A v \in 1..Len(history) : v >= BoundaryOf(Len(history)) => slot[v] = history[v]

\* What stands above the head would end the log when it gets there.
I7_NothingAboveTheHead == \A v \in Versions : v > Len(history) => slot[v] = None

Seen_RestoredUnderAWriter == ~ (restored > 0 /\ Len(history) > 0 /\ \E p \in Procs : Is(p, "put") /\ \E q \in Procs : Is(q, "dead") /\ proc[q].state.at > Len(history))
Seen_AppendIntoAnExpiredSlot == ~ \E p \in Procs : Is(p, "created") /\ proc[p].state.at + 1 < BoundaryOf(Len(history))
Seen_OwnEntryFoundByReading == ~ \E p \in Procs : Is(p, "decide") /\ \E v \in 1..Len(history) : history[v].op = <<p, proc[p].appends>>
Seen_LandedAfterItsWriterDied == ~ \E v \in 1..Len(history) : proc[history[v].op[1]].do = "dead" /\ v > 1 /\ flying = {} /\ lost > 0
=============================================================================
