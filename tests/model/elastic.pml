/* How an elastic job goes from world to world, as perseus/elastic/driver.py, its workers
 * (perseus_core/driver_link.py, perseus/common/elastic.py) and the rendezvous have it: names here
 * are the names there. How ranks agree on an operation is the other model, agreement.pml.
 *
 * RANKS workers start. Each trains for STEPS steps, which are one operation and one commit each. As
 * many as DEATHS workers die, as many as LEAVES lose their slots, and as many as JOINS come, all at
 * any moment: also while the workers meet, or while the driver forms a world. As many as TIMEOUTS
 * time-outs of the driver come early, that is, while the workers it waits for are only slow. A
 * message arrives at any time after it was sent; those of one worker arrive in order.
 *
 * To save states, a worker that has not read yet which world it is to be in is no other than one
 * that waits at the rendezvous, and a worker that is refused ends at once. The driver hears of that
 * later.
 *
 * There is one call of a training function, and no worker fails after it. So workers that have not
 * joined are ended once another has returned; the driver waits for a further call until all that
 * have returned have ended.
 *
 * Checked:
 *   - the job ends, and if it ends well, a worker has done all of its work
 *   - it does not fail for want of workers once one has done its work
 *   - when the job has ended, no worker waits for another
 *   - no operation is agreed on in a world after one was in a later world
 *   - all members that complete an operation hear of the same change with it
 *   - a world other than the first has a worker that has been in the one before: it has the state,
 *     unless those that were to give it were lost; the driver knows that by commits, left out here
 *   - the driver takes no world for ended that trains on, and forms none without a cause
 *   - no worker is left behind: it is starting, or in the world, or waits for one that is being
 *     formed or was announced to the members, or is to end and will be told so
 */

#ifndef RANKS
#define RANKS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef JOINS
#define JOINS 1
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef LEAST
#define LEAST 1
#endif
#ifndef STEPS
#define STEPS 2
#endif
#define WORKERS (RANKS + JOINS)
#define MEETINGS (2 + DEATHS + LEAVES + JOINS + TIMEOUTS) /* one more than ever happen */
#define bit(i) (1 << (i))

/* ---- What the worker does. */
#define ASKS 0     /* in next_world, or before that */
#define MEETS 1    /* it has been told a world, and meets the others at the rendezvous */
#define TRAINS 2   /* in run_fn's function; its first operation is that of needs_sync and sync */
#define RETURNED 3 /* from that function */
#define ENDED 4    /* the process has */

/* ---- What the driver takes it for. */
#define NOT_STARTED 0
#define STARTING 1
#define WAITING 2
#define MEMBER 3
#define FINISHED 4
#define GONE 5

/* ---- What a worker says. */
#define NOTHING 0
#define READY 1
#define DONE 2

typedef Worker {
  byte phase;
  byte meeting; /* where its engine is, or is about to be; 0: nowhere */
  byte completed; /* operations of this world */
  bool is_in_operation;
  byte steps;
  byte change; /* the number of the last one that it is told of */
#ifdef CHANGE_IS_NOT_CARRIED
  byte heard;
#endif
  byte says;
  bool is_killed;
  bool has_failed; /* it has died, and not exited with code 0 */
  /* What the driver knows. */
  byte state;
  byte last_meeting;
  bool is_leaving;
  bool is_told_to_end
}
Worker worker[WORKERS];

typedef World {
  byte members; /* bits: workers, as in the next two */
  byte lost;    /* died or left */
  byte submitted[2]; /* by an operation's number & 1 */
  byte carried[2]; /* the number of the change that the operation carries */
  byte change; /* the last that it takes into account */
  bool has_met;
  byte agreed;  /* operations */
  byte steps;   /* those of rank 0, from which the others have theirs */
  byte passed;  /* the last operation after which a member went on, */
  byte stopped  /* and the one after which one stopped for a change */
}
World world[MEETINGS];

/* ---- The driver */
byte meeting;
byte change;
bool is_over, has_succeeded, has_finished, has_returned;
bool is_forming = true;
bool waits_for_starts;
byte announced;   /* bits: workers */
byte gone_places; /* bits: workers */
byte started = RANKS;

byte deaths, leaves_, early;
byte newest; /* the last meeting in whose world an operation was agreed on */

hidden byte i, j, yes, has_state, members, waiting, starting, staying;


#define me_ worker[me]
#define here world[me_.meeting]
#define number (me_.completed + 1) /* of the operation that is under way, or the next */

/* What nobody asks for any more is cleared, to save states. */
inline forget_world(which) {
  if
  :: world[which].lost == world[which].members ->
     world[which].submitted[0] = 0;
     world[which].submitted[1] = 0;
     world[which].carried[0] = 0;
     world[which].carried[1] = 0;
     world[which].agreed = 0;
     world[which].steps = 0;
     world[which].passed = 0;
     world[which].stopped = 0
  :: else
  fi
}

/* Shutdown, then init. What it has submitted goes with it, unless others have agreed on it. */
inline reset() {
  here.lost = here.lost | bit(me);
  here.submitted[0] = here.submitted[0] & ~bit(me);
  here.submitted[1] = here.submitted[1] & ~bit(me);
  forget_world(me_.meeting);
  me_.meeting = 0;
  me_.completed = 0;
  me_.is_in_operation = false;
  me_.phase = ASKS;
  me_.says = READY
}

/* Its connections end, and the rendezvous hears of it. */
inline end_process() {
  me_.phase = ENDED;
  if
  :: me_.meeting != 0 -> here.lost = here.lost | bit(me); forget_world(me_.meeting)
  :: else
  fi;
  me_.meeting = 0;
  me_.completed = 0;
  me_.is_in_operation = false;
  me_.is_killed = false;
  me_.steps = 0;
  me_.change = 0
}

/* ---- A worker's steps */

/* The change may have come in time, or not. */
inline submit() {
  me_.is_in_operation = true;
  here.submitted[number & 1] = here.submitted[number & 1] | bit(me);
  if
  :: me_.change > here.carried[number & 1] ->
#ifdef CHANGE_IS_NOT_CARRIED
     me_.heard = me_.change
#else
     here.carried[number & 1] = me_.change
#endif
  :: true
  fi
}

inline agree() {
  if
  :: here.agreed < number ->
     here.agreed = number;
     assert(me_.meeting >= newest); /* no later world works already */
     newest = me_.meeting;
     here.submitted[(number + 1) & 1] = 0;
     here.carried[(number + 1) & 1] = here.carried[number & 1];
     if
     :: number == 1 -> /* rank 0 is a worker with the most commits */
        i = 0;
        do
        :: i < WORKERS ->
           if
           :: (here.members & bit(i)) && worker[i].steps > here.steps ->
              here.steps = worker[i].steps
           :: else
           fi;
           i++
        :: else -> break
        od
     :: else
     fi
  :: else
  fi
}

#ifdef CHANGE_IS_NOT_CARRIED
#define has_changed (me_.heard > here.change)
#else
#define has_changed (here.carried[me_.completed & 1] > here.change)
#endif

inline commit() {
  if
  :: has_changed -> /* HostsUpdatedInterrupt */
     assert(here.passed < me_.completed);
     assert(here.stopped == 0 || here.stopped == me_.completed);
     here.stopped = me_.completed;
     reset()
  :: else ->
     assert(here.stopped == 0 || here.stopped > me_.completed);
     if :: here.passed < me_.completed -> here.passed = me_.completed :: else fi
  fi
}

inline complete() {
  agree();
  me_.completed++;
  me_.is_in_operation = false;
  if
  :: me_.completed == 1 -> me_.steps = here.steps
  :: else -> me_.steps++; commit()
  fi
}

inline return_from_function() {
  has_returned = true;
  me_.phase = RETURNED;
  me_.says = DONE
}

/* What it has said may be lost. */
inline die() {
  me_.has_failed = true;
  if :: me_.says = NOTHING :: true fi;
  end_process()
}

/* ---- The driver. `w` is a worker. */

#define is_alive(w) (worker[w].state != NOT_STARTED && worker[w].state != GONE)
#define is_staying(w) (is_alive(w) && !worker[w].is_leaving)
#define is_old(w) (worker[w].last_meeting != 0)

inline end_job(succeeded) {
  assert(succeeded || !has_finished);
  is_over = true;
  has_succeeded = succeeded
}

inline kill_worker(w) {
  worker[w].is_leaving = true;
  if
  :: !worker[w].is_told_to_end -> worker[w].is_told_to_end = true; worker[w].is_killed = true
  :: else
  fi
}

/* It exits, which the driver hears of later. */
inline refuse(w) {
  worker[w].is_leaving = true;
  if
  :: !worker[w].is_told_to_end -> worker[w].is_told_to_end = true; worker[w].phase = ENDED
  :: else
  fi
}

inline finish() {
  yes = false;
  j = 0;
  do
  :: j < WORKERS ->
     if
     :: worker[j].state == STARTING -> kill_worker(j)
     :: worker[j].state == WAITING -> refuse(j)
     :: worker[j].state == MEMBER -> yes = true
     :: else
     fi;
     j++
  :: else -> break
  od;
  if :: !yes -> end_job(true) :: else fi
}

inline let_go() {
  j = 0;
  do
  :: j < WORKERS ->
     if
     :: is_alive(j) ->
        worker[j].is_leaving = worker[j].is_leaving || (gone_places & bit(j));
        if
        :: worker[j].is_leaving && worker[j].state == STARTING -> kill_worker(j)
        :: worker[j].is_leaving && worker[j].state == WAITING -> refuse(j)
        :: else
        fi
     :: else
     fi;
     j++
  :: else -> break
  od
}

#ifdef JOIN_AT_ONCE
#define awaits_starting true
#else
#define awaits_starting (meeting == 0)
#endif
#define is_joiner(w) \
  (is_staying(w) && !is_old(w) && \
   (worker[w].state == WAITING || (worker[w].state == STARTING && awaits_starting)))
#ifdef FORMER_MEMBERS_COUNT
#define is_leaver(w) (worker[w].state == MEMBER && worker[w].is_leaving)
#else
#define is_leaver(w) \
  (worker[w].state == MEMBER && worker[w].is_leaving && worker[w].last_meeting == meeting)
#endif

inline notify() {
  yes = false;
  j = 0;
  do
  :: j < WORKERS && !is_forming ->
     if
     :: (is_joiner(j) || is_leaver(j)) && !(announced & bit(j)) ->
        announced = announced | bit(j);
        yes = true
     :: else
     fi;
     j++
  :: else -> break
  od;
  if
  :: yes ->
     change++;
     j = 0;
     do
     :: j < WORKERS ->
        if
        :: worker[j].state == MEMBER && worker[j].last_meeting == meeting ->
           worker[j].change = change
        :: else
        fi;
        j++
     :: else -> break
     od
  :: else
  fi
}

inline count_workers() {
  members = 0; waiting = 0; starting = 0; /* of those that stay */
  staying = 0; /* that have the state */
  j = 0;
  do
  :: j < WORKERS ->
     if
     :: is_staying(j) ->
        members = members + (worker[j].state == MEMBER);
        waiting = waiting + (worker[j].state == WAITING);
        starting = starting + (worker[j].state == STARTING);
        staying = staying + (is_old(j) || meeting == 0)
     :: else
     fi;
     j++
  :: else -> break
  od
}

inline form() {
  meeting++;
  assert(meeting < MEETINGS);
  is_forming = false;
  world[meeting].change = change;
  world[meeting].carried[0] = change;
  has_state = meeting == 1;
  j = 0;
  do
  :: j < WORKERS ->
     if
     :: is_staying(j) && worker[j].state == WAITING ->
        has_state = has_state || worker[j].last_meeting == meeting - 1;
        world[meeting].members = world[meeting].members | bit(j);
        worker[j].state = MEMBER;
        worker[j].last_meeting = meeting;
        worker[j].change = 0; /* what comes before the answer has no effect any more */
        if
        :: worker[j].phase == ENDED -> world[meeting].lost = world[meeting].lost | bit(j)
        :: else -> worker[j].phase = MEETS; worker[j].meeting = meeting
        fi
     :: else
     fi;
     j++
  :: else -> break
  od;
  assert(has_state)
}

#define is_least (waiting >= (meeting == 0 -> RANKS : LEAST))

#ifdef REFUSED_WORKER_ENDS_WORLD
#define has_left_world(w) (worker[w].state == WAITING && is_old(w))
#else
#define has_left_world(w) (worker[w].state == WAITING && worker[w].last_meeting == meeting)
#endif

inline begin_to_form() {
  yes = true; /* the last world has ended: a member wants another, or there is none */
  j = 0;
  do
  :: j < WORKERS -> yes = yes && worker[j].state != MEMBER; j++
  :: else -> break
  od;
  j = 0;
  do
  :: j < WORKERS -> yes = yes || has_left_world(j); j++
  :: else -> break
  od;
  if
  :: yes -> assert(world[meeting].lost != 0); is_forming = true; waits_for_starts = false
  :: else
  fi
}

inline form_if_possible() {
  if :: !is_forming -> begin_to_form() :: else fi;
  if
  :: is_forming ->
     count_workers();
     if
     :: staying == 0 -> end_job(false)
#ifdef MEMBERS_ARE_NOT_WAITED_FOR
     :: staying != 0 && is_least && waiting > 0 &&
#else
     :: staying != 0 && is_least && waiting > 0 && members == 0 &&
#endif
        !(awaits_starting && starting > 0) -> form()
     :: else
     fi
  :: else
  fi
}

/* No worker is forgotten by the driver. */
inline check_workers() {
  j = 0;
  do
  :: j < WORKERS && !is_over && !has_finished ->
     assert(!is_alive(j) || worker[j].is_told_to_end || worker[j].state == STARTING ||
            (worker[j].state == MEMBER && worker[j].is_leaving) ||
            (worker[j].state == MEMBER && worker[j].last_meeting == meeting) ||
            (worker[j].state == WAITING && (is_forming || (announced & bit(j)))));
     j++
  :: else -> break
  od;
  skip /* a d_step must not end with a loop */
}

inline update() {
  if
  :: has_finished -> finish()
  :: else ->
     let_go();
     notify();
     form_if_possible()
  fi;
  check_workers()
}

inline ready(w) {
  worker[w].says = NOTHING;
  worker[w].state = WAITING;
  update()
}

inline finished(w) {
  worker[w].says = NOTHING;
  worker[w].state = FINISHED;
  has_finished = true;
  update()
}

inline ended(w) {
  worker[w].state = GONE;
#ifdef SHARED_HOST /* by workers 0 and 1; the driver blacklists it */
  if
  :: w < 2 && worker[w].has_failed && !worker[w].is_leaving ->
     gone_places = gone_places | 3;
     if :: is_alive(1 - w) -> kill_worker(1 - w) :: else fi
  :: else
  fi;
#endif
  if
  :: !worker[w].is_leaving && !worker[w].has_failed -> has_finished = true
  :: else
  fi;
  update()
}

inline time_out() {
  count_workers();
  if
  :: starting > 0 && (awaits_starting || waiting < LEAST) && waiting + starting >= LEAST &&
     !waits_for_starts -> waits_for_starts = true
  :: else ->
     if
     :: waiting < 1 || waiting < LEAST -> end_job(false)
     :: else ->
        has_state = meeting == 0; /* a worker that waits has it */
        j = 0;
        do
        :: j < WORKERS ->
           if
           :: is_staying(j) && (worker[j].state == MEMBER || worker[j].state == STARTING) ->
              kill_worker(j)
           :: is_staying(j) && worker[j].state == WAITING -> has_state = has_state || is_old(j)
           :: else
           fi;
           j++
        :: else -> break
        od;
#ifdef STATE_IS_FORGOTTEN
        form()
#else
        if :: has_state -> form() :: else -> end_job(false) fi
#endif
     fi;
     check_workers()
  fi
}

#define is_up (me_.phase != ENDED)
#define is_running (me_.phase == TRAINS)
#ifdef LOST_ARE_NOT_NEEDED
#define all_submitted ((here.submitted[number & 1] | here.lost) == here.members)
#else
#define all_submitted (here.submitted[number & 1] == here.members)
#endif
#define is_agreed (here.agreed >= number || all_submitted)
#define is_done (me_.completed > 0 && me_.steps == STEPS)
#define is_on (!is_over && !has_finished)

/* The first workers are all alike, so they may come in the order of their numbers. */
#define in_order (me == 0 || me >= RANKS || meeting > 0 || worker[me - 1].state != STARTING)

/* One worker, and the driver's end of its connection. */
proctype Run(byte me) {
end:
  do
  :: d_step {
       me_.phase == MEETS && (here.has_met || here.lost == 0) ->
       here.has_met = true;
       me_.phase = TRAINS
     }
#ifndef MEETING_WAITS_FOR_DEAD
  :: d_step { me_.phase == MEETS && here.lost != 0 -> reset() }
#endif
  :: d_step { is_running && !me_.is_in_operation && is_done -> return_from_function() }
  :: atomic { is_running && !me_.is_in_operation && !is_done -> submit() }
  :: d_step { is_running && me_.is_in_operation && is_agreed -> complete() }
  :: d_step { is_running && me_.is_in_operation && here.lost != 0 -> reset() }
  :: d_step { me_.phase == RETURNED -> end_process() }
#if DEATHS > 0
  :: atomic { is_up && me_.state != NOT_STARTED && deaths < DEATHS -> deaths++; die() }
#endif
  :: atomic { is_up && me_.is_killed -> die() }
  :: d_step { !is_over && me_.says == READY && in_order -> ready(me) }
  :: d_step { !is_over && me_.says == DONE -> finished(me) }
  :: d_step { !is_over && !is_up && me_.says == NOTHING && me_.state != GONE -> ended(me) }
#if LEAVES > 0
  :: d_step {
       is_on && is_staying(me) && leaves_ < LEAVES ->
       leaves_++; gone_places = gone_places | bit(me); update()
     }
#endif
#if JOINS > 0
  :: d_step {
       is_on && me == started && me < WORKERS ->
       started++; me_.state = STARTING; me_.says = READY; update()
     }
#endif
  od
}

#ifdef DEADLINE_OUTLIVES_JOB
#define has_deadline (is_forming && !is_over)
#else
#define has_deadline (is_forming && is_on)
#endif

init {
  atomic {
    i = 0;
    do
    :: i < WORKERS ->
       if
       :: i < RANKS ->
          worker[i].state = STARTING;
          worker[i].says = READY
       :: else
       fi;
       run Run(i);
       i++
    :: else -> break
    od
  }
  do
#if TIMEOUTS > 0
  :: d_step { has_deadline && early < TIMEOUTS -> early++; time_out() }
#endif
  :: timeout -> /* nothing more can happen */
     if
     :: d_step { has_deadline -> time_out() }
     :: !has_deadline -> break
     fi
  od;
  assert(is_over);
  assert(!has_succeeded || has_returned);
  i = 0;
  do
  :: i < WORKERS ->
     assert(worker[i].phase == ASKS || worker[i].phase == ENDED);
     i++
  :: else -> break
  od
}
