/* Agreement and abort in one process set, as csrc/negotiation/negotiator.cc and
 * csrc/engine/process_sets.cc have them: names here are the names there.
 *
 * A rank submits any of NAMES operations, each when it likes and in any order. As many as LEAVES
 * ranks shut down, at any moment, and as many as CRASHES die, at any moment. Messages arrive in any
 * order; to each rank all arrives that a dead one had under way to it, or nothing. Only the next
 * living rank is sure to see a death: the others learn of it by what that one tells its neighbours.
 * Data are one message for each operation and pair of ranks; nobody learns from the data that do
 * not come that a rank has left, since in a ring one may wait for another that waits for the leaver.
 *
 * Checked:
 *   - two ranks that complete a round have the same plan
 *   - no ballot comes that receive() would refuse: late, early, or twice
 *   - an operation that ends well has the contribution of every rank that it takes one from: of all,
 *     or with BROADCAST of any one
 *   - one that fails has somebody to blame: who died, left without it, or left it unfinished
 *   - wherever nothing more can happen, no living rank has anything outstanding
 *   - no run goes on for ever: none takes more than ROUNDS rounds
 */

#ifndef N
#define N 3
#endif
#ifndef NAMES
#define NAMES 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#define HOPS 2 /* ceil(log2 N), of 3 and 4 */
#define ROUNDS 15
#define ALL_RANKS ((1 << N) - 1)
#define NO_LIMIT 255
#define bit(i) (1 << (i))
#define after(rank, hop) (((rank) + (1 << (hop))) % N)

/* ---- Each rank's negotiator */
typedef Inbox {
  byte has_arrived; /* bits: hops */
  byte bits[HOPS]
}
typedef Negotiator {
  byte pending; /* bits: names submitted and not agreed on */
  bool has_news;
  bool in_round;
  byte hop;
  byte ballot;
  byte completed_rounds;
  byte last_round;
  Inbox inbox[2] /* by round & 1 */
}
Negotiator negotiator[N];

/* ---- Each rank's engine */
byte submitted[N];
byte running[N]; /* agreed on, shards under way */
byte agreed_in[NAMES]; /* the round; 0: none yet */
byte failed[N];
byte left_[N]; /* bits: ranks that it knows to have left */
bool is_broken[N];
bool closing[N];
bool dead[N];
byte deaths, leaves_begun, unfinished_leaves;

/* ---- What is under way to each rank */
typedef Ballot {
  byte round; /* 0: none is */
  byte bits
}
typedef Ballots {
  Ballot hop[HOPS]
}
typedef Wire {
  Ballots round[2]; /* by round & 1 */
  bool broken;
  byte leaving;    /* bits: ranks */
  byte data[NAMES] /* bits: ranks whose data have come, and stay */
}
Wire wire[N];
byte leaving_rounds[N];

/* ---- To compare with */
byte plan[ROUNDS + 1]; /* of who completed the round first */
bool has_plan[ROUNDS + 1];
byte neutral[NAMES]; /* bits: ranks that took part without what was submitted */

#ifdef BROADCAST /* any rank's */
byte needed;
#else
#define needed ALL_RANKS
#endif

hidden byte i, j, k, h, yes;

#define me_ negotiator[me]
#define next_round (me_.completed_rounds + 1)
#define is_exhausted (me_.completed_rounds >= me_.last_round)
#define arrived me_.inbox[next_round & 1]
#if defined(NEUTRAL_AFTER_END) || defined(NEUTRAL_BEYOND_LAST_ROUND)
#define is_beyond false
#else
#define is_beyond (me_.completed_rounds > me_.last_round)
#endif

inline fail(names) {
  failed[me] = failed[me] | (names);
  j = 0;
  do
  :: j < NAMES ->
     if
     :: (names) & bit(j) ->
        yes = closing[me] || deaths > 0 || unfinished_leaves > 0;
        k = 0;
        do
        :: k < N -> yes = yes || (closing[k] && !(submitted[k] & bit(j))); k++
        :: else -> break
        od;
        assert(yes) /* somebody is to blame */
     :: else
     fi;
     j++
  :: else -> break
  od
}

inline fail_all() {
  fail(me_.pending | running[me]);
  me_.pending = 0;
  running[me] = 0
}

inline end_operations() {
  is_broken[me] = true;
#ifndef DEATH_IS_NOT_TOLD
  k = 0;
  do
  :: k < N -> if :: k != me && !dead[k] -> wire[k].broken = true :: else fi; k++
  :: else -> break
  od;
#endif
  fail_all()
}

inline break_world() {
  if
  :: !is_broken[me] ->
     end_operations()
  :: else
  fi
}

inline tell_of_leaving(who) {
  k = 0;
  do
  :: k < N ->
     if
     :: k != me && !dead[k] && !(left_[k] & bit(who)) ->
        wire[k].leaving = wire[k].leaving | bit(who)
     :: else
     fi;
     k++
  :: else -> break
  od
}

inline send_hop() {
  h = me_.hop;
  k = after(me, h);
  if
  :: !dead[k] ->
     assert(wire[k].round[next_round & 1].hop[h].round == 0);
     wire[k].round[next_round & 1].hop[h].round = next_round;
     wire[k].round[next_round & 1].hop[h].bits = me_.ballot
  :: else
  fi
}

inline on_agreement() {
#ifdef NEUTRAL_AFTER_END
  yes = true;
#else
  yes = !is_broken[me] && !closing[me];
#endif
  if
  :: yes && is_beyond && me_.ballot != 0 -> break_world()
  :: yes && !is_beyond ->
     j = 0;
     do
     :: j < NAMES ->
        if
        :: me_.ballot & bit(j) ->
           agreed_in[j] = me_.completed_rounds;
           if :: !(me_.pending & bit(j)) -> neutral[j] = neutral[j] | bit(me) :: else fi;
           k = 0;
           do
           :: k < N -> wire[k].data[j] = wire[k].data[j] | bit(me); k++
           :: else -> break
           od
        :: else
        fi;
        j++
     :: else -> break
     od;
     running[me] = running[me] | (me_.ballot & me_.pending);
     me_.pending = me_.pending & ~me_.ballot
  :: else
  fi
}

inline complete_round() {
  me_.in_round = false;
  me_.completed_rounds++;
  i = me_.completed_rounds;
  assert(i < ROUNDS);
  if
  :: has_plan[i] -> assert(plan[i] == me_.ballot)
  :: else -> has_plan[i] = true; plan[i] = me_.ballot
  fi;
  on_agreement();
  me_.ballot = 0;
  me_.hop = 0
}

inline advance() {
  do
  :: true ->
     if
     :: !me_.in_round && !is_exhausted &&
        (me_.has_news || (arrived.has_arrived != 0 && me_.pending != 0)) ->
        me_.in_round = true;
        me_.has_news = false;
        me_.ballot = me_.pending;
        send_hop()
     :: else
     fi;
     if :: !me_.in_round -> break :: else fi;
     do
     :: me_.hop < HOPS && (arrived.has_arrived & bit(me_.hop)) ->
        h = me_.hop;
        arrived.has_arrived = arrived.has_arrived & ~bit(h);
        me_.ballot = me_.ballot & arrived.bits[h];
        arrived.bits[h] = 0;
        me_.hop++;
        if :: me_.hop < HOPS -> send_hop() :: else fi
     :: else -> break
     od;
#ifdef ANY_HOP_WILL_DO
     if :: me_.hop == 0 -> break :: else fi;
#else
     if :: me_.hop < HOPS -> break :: else fi;
#endif
     complete_round()
  od;
  if
  :: is_exhausted && me_.pending != 0 -> fail(me_.pending); me_.pending = 0
  :: else
  fi
}

inline on_member_gone() {
  advance();
  j = 0;
  do
  :: j < NAMES ->
     if
#ifndef LEAVER_IS_WAITED_FOR
     :: (running[me] & bit(j)) && agreed_in[j] > me_.last_round -> break_world()
#endif
     :: else
     fi;
     j++
  :: else -> break
  od
}

inline receive(r, hop_) {
  i = wire[me].round[r].hop[hop_].round;
  assert(i == next_round || i == next_round + 1);
  assert(!(me_.inbox[r].has_arrived & bit(hop_)));
  me_.inbox[r].has_arrived = me_.inbox[r].has_arrived | bit(hop_);
  me_.inbox[r].bits[hop_] = wire[me].round[r].hop[hop_].bits;
  wire[me].round[r].hop[hop_].round = 0;
  wire[me].round[r].hop[hop_].bits = 0;
  advance()
}

inline submit(name) {
  submitted[me] = submitted[me] | bit(name);
  if
  :: is_broken[me] || left_[me] != 0 -> fail(bit(name))
  :: else ->
     me_.pending = me_.pending | bit(name);
     me_.has_news = true;
     advance()
  fi
}

inline on_leaving(who) {
  wire[me].leaving = wire[me].leaving & ~bit(who);
  if
  :: !(left_[me] & bit(who)) ->
     left_[me] = left_[me] | bit(who);
     tell_of_leaving(who);
     if
     :: leaving_rounds[who] < me_.last_round -> me_.last_round = leaving_rounds[who]
     :: else
     fi;
     on_member_gone()
  :: else
  fi
}

inline begin_shutdown() {
  closing[me] = true;
  leaves_begun++;
  leaving_rounds[me] = me_.completed_rounds;
  left_[me] = left_[me] | bit(me);
  tell_of_leaving(me);
  if :: me_.pending != 0 -> unfinished_leaves++ :: else fi;
  fail(me_.pending);
  me_.pending = 0
}

inline stop_taking_part() {
  unfinished_leaves++;
  end_operations()
}

/* But for news that another has under way to it, too: who knows tells all that do not. */
inline lose_news_to(rank) {
  h = 0; /* bits: ranks that others know to have left */
  yes = false;
  k = 0;
  do
  :: k < N ->
     if
     :: k != me && !dead[k] -> h = h | left_[k]; yes = yes || is_broken[k]
     :: else
     fi;
     k++
  :: else -> break
  od;
  wire[rank].leaving = wire[rank].leaving & h;
  wire[rank].broken = wire[rank].broken && yes
}

inline die() {
  deaths++;
  dead[me] = true;
  i = 0;
  do
  :: i < N ->
     if
     :: i == me
     :: i != me && !dead[i] -> /* all */
     :: i != me && !dead[i] ->
        j = 0;
        do
        :: j < NAMES -> wire[i].data[j] = wire[i].data[j] & ~bit(me); j++
        :: else -> break
        od;
        j = 0;
        do
        :: j < HOPS ->
           if
           :: after(me, j) == i ->
              wire[i].round[0].hop[j].round = 0;
              wire[i].round[0].hop[j].bits = 0;
              wire[i].round[1].hop[j].round = 0;
              wire[i].round[1].hop[j].bits = 0
           :: else
           fi;
           j++
        :: else -> break
        od;
        lose_news_to(i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  me_.pending = 0;
  running[me] = 0
}

#define is_up (!dead[me] && !closing[me])
#define has_arrived(r, hop_) (!dead[me] && wire[me].round[r].hop[hop_].round != 0)
#define may_submit(name) (is_up && !(submitted[me] & bit(name)))
#define is_complete(name) ((running[me] & bit(name)) && (wire[me].data[name] & needed) == needed)
#define leaves(who) (!dead[me] && (wire[me].leaving & bit(who)))
#define before(distance) ((me + N - (distance)) % N)
#define is_gone(rank) (dead[rank] || closing[rank])
/* The nearest before this rank that is dead, with none between that is still there to see it. */
#define sees_death \
  (dead[before(1)] || (is_gone(before(1)) && dead[before(2)]) || \
   (N > 3 && is_gone(before(1)) && is_gone(before(2)) && dead[before(3)]))
/* Nothing is left to do before the links are closed. */
#define is_done(rank) (closing[rank] && running[rank] == 0)

#define OPERATION(name) \
  :: d_step { may_submit(name) -> submit(name) } \
  :: d_step { \
       !dead[me] && is_complete(name) -> \
       assert((neutral[name] & needed) == 0); \
       running[me] = running[me] & ~bit(name) \
     }

proctype Rank(byte me) {
end:
  do
  OPERATION(0)
#if NAMES > 1
  OPERATION(1)
#endif
  :: d_step { has_arrived(0, 0) -> receive(0, 0) }
  :: d_step { has_arrived(0, 1) -> receive(0, 1) }
  :: d_step { has_arrived(1, 0) -> receive(1, 0) }
  :: d_step { has_arrived(1, 1) -> receive(1, 1) }
  :: d_step { !dead[me] && wire[me].broken -> wire[me].broken = false;
              if :: !is_done(me) -> break_world() :: else fi }
  :: d_step { leaves(0) -> on_leaving(0) }
  :: d_step { leaves(1) -> on_leaving(1) }
  :: d_step { leaves(2) -> on_leaving(2) }
#if N > 3
  :: d_step { leaves(3) -> on_leaving(3) }
#endif
  :: d_step { !dead[me] && !is_done(me) && !is_broken[me] && sees_death ->
              break_world() } /* on_rank_lost */
#if LEAVES > 0
  :: d_step { is_up && !is_broken[me] && leaves_begun < LEAVES -> begin_shutdown() }
  :: d_step { !dead[me] && closing[me] && running[me] != 0 && !is_broken[me] ->
              stop_taking_part() }
#endif
#if CRASHES > 0
  :: atomic { !dead[me] && !is_done(me) && deaths < CRASHES -> die() }
#endif
  od
}

#define is_idle(rank) (dead[rank] || negotiator[rank].pending == 0 && running[rank] == 0)

init {
  atomic {
    i = 0;
    do
    :: i < N -> negotiator[i].last_round = NO_LIMIT; run Rank(i); i++
    :: else -> break
    od;
#ifdef BROADCAST
    select(i : 0 .. N - 1);
    needed = bit(i)
#endif
  }
  timeout; /* nothing more can happen */
  i = 0;
  do
  :: i < N -> assert(is_idle(i)); i++
  :: else -> break
  od
}
