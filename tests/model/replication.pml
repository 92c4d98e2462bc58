/*
 * Replication of one topic among three nodes: register, epochs, acknowledgements, membership, truncation.
 *
 * One process picks any action of any node at each step, so that every order of steps is explored. A node that is
 * down or paused is one whose actions are not picked. A message is a step of its receiver. A kill includes the
 * restart. Kills, timeouts and power losses are not counted: any number of them happens, except that at most one
 * node at a time (fewer than `min`) has lost power and not caught up since.
 *
 * An entry is identified by the epoch of the leader that wrote it and by its offset, so a log is an array of epochs.
 * `acknowledged` is what clients were told; no node reads it. What is checked is in the section "Properties".
 *
 * Each symbol NO_... removes one rule, and WITNESS_... asserts that a situation is never reached.
 */

#define N 3 /* nodes */
#define MIN 2 /* smallest set that may acknowledge */
#ifndef LENGTH
#define LENGTH 2 /* entries in a log */
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif

#define bit_of(n) (1 << (n))
#define has(set, n) (((set) >> (n)) & 1)
#define size(set) (has(set, 0) + has(set, 1) + has(set, 2))

typedef Node {
    /* On disk. A power loss may shorten the log; the rest is synced before it is relied on. */
    byte log[LENGTH]; /* epochs of the entries; 0 after the end */
    byte end;
    byte epoch; /* highest epoch led or followed */
    bit suspect; /* lost power, and has not caught up since */

    /* Of the process. */
    byte follows; /* 1 + the leader to which it has a stream, or 0 */
    byte tried; /* epoch for which it has sent a compare-and-set, outcome unknown, or 0 */

    /* Of a leader; 0 otherwise. */
    byte leads; /* its epoch */
    byte set; /* in-sync set that it last read */
    byte waits; /* nodes whose acknowledgement a commit needs: the set, and every set proposed since */
    byte elected_end; /* end of its log at its election */
    byte committed;
    byte ack[N] /* 1 + the offset acknowledged on the newest stream of each node, or 0 without a stream */
};

typedef Register { byte epoch; byte leader; byte set };

Node node[N];
Register reg;
Register late; /* a compare-and-set on the current revision that may still be applied; epoch 0 if there is none */
byte suspect_target; /* end of the leader's log when the suspect node opened its stream */
byte acknowledged[LENGTH];
#ifdef WITNESS_COMMIT_AFTER_REPLACEMENT
bit old_leader_stays; /* node 1 was elected in a set of two, from which node 0 could not be removed */
#endif
byte k, m; /* of the current step; 0 between steps */

/* ---- Properties ---- */

#define is_acknowledged(n, o) (acknowledged[o] == 0 || acknowledged[o] == node[n].log[o])
#if LENGTH == 2
#define has_all(n) (is_acknowledged(n, 0) && is_acknowledged(n, 1))
#else
#define has_all(n) (is_acknowledged(n, 0) && is_acknowledged(n, 1) && is_acknowledged(n, 2))
#endif

#define all_suspect(set) (!(has(set, 0) && !node[0].suspect) && !(has(set, 1) && !node[1].suspect) && \
    !(has(set, 2) && !node[2].suspect))

/* If all members are suspect, the one with the newest log stands. One node at a time is suspect here, so this is a
 * set of one, and happens only if sets may be smaller than MIN. */
#ifdef NO_SUSPECT
#define may_stand(n) has(reg.set, n)
#else
#define may_stand(n) (has(reg.set, n) && (!node[n].suspect || all_suspect(reg.set)))
#endif

#define is_leader(n) (node[n].leads && reg.leader == n && node[n].leads == reg.epoch)
#define keeps_all(n) (!(may_stand(n) || is_leader(n)) || has_all(n))

/* No acknowledged entry is lost: the leader, and each node that can become the next one, has all of them. */
#define check_nothing_lost() assert(keeps_all(0) && keeps_all(1) && keeps_all(2))

/* (epoch, offset) identifies one entry: nobody has what is written now. */
#define is_new(e, o) (node[0].log[o] != e && node[1].log[o] != e && node[2].log[o] != e && acknowledged[o] != e)

/* ---- The register ---- */

inline set_register(new_epoch, new_leader, new_set) {
    reg.epoch = new_epoch;
    reg.leader = new_leader;
    reg.set = new_set;
    late.epoch = 0; /* the revision has changed: what was sent before fails */
    late.leader = 0;
    late.set = 0;
    k = 0;
    do
    :: k < N ->
        if
        :: k != reg.leader -> node[k].tried = 0 /* its compare-and-set has failed for good */
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

/* A compare-and-set is applied at once, and its sender learns of it in a later step; or its sender times out, and it
 * may be applied later. At most one of those sent on a revision is ever applied, so one is remembered: any of them,
 * because a later one may take its place, which means that the earlier one is lost. */
inline compare_and_set(new_epoch, new_leader, new_set, is_late) {
    if
    :: is_late ->
        late.epoch = new_epoch;
        late.leader = new_leader;
        late.set = new_set
    :: else -> set_register(new_epoch, new_leader, new_set)
    fi
}

inline apply_late() {
    d_step {
        late.epoch != 0 ->
        printf("register: late compare-and-set applied, epoch %d leader %d set %d\n", late.epoch, late.leader, late.set);
#ifdef WITNESS_LATE_ELECTION
        assert(late.epoch == reg.epoch);
#endif
        set_register(late.epoch, late.leader, late.set);
        check_nothing_lost()
    }
}

/* ---- Elections ---- */

inline forget_leadership(n) {
    if
    :: node[n].leads ->
        node[n].leads = 0;
        node[n].set = 0;
        node[n].waits = 0;
        node[n].elected_end = 0;
        node[n].committed = 0;
#ifndef NO_DISCARD_AT_ELECTION
        node[n].ack[0] = 0;
        node[n].ack[1] = 0;
        node[n].ack[2] = 0;
#endif
        k = 0;
        do
        :: k < N ->
            if
            :: node[k].follows == n + 1 -> node[k].follows = 0
            :: else
            fi;
            k++
        :: else -> break
        od;
        k = 0
    :: else
    fi
}

inline start_serving(n, new_epoch, new_set) {
    node[n].epoch = new_epoch;
    node[n].leads = new_epoch;
    node[n].set = new_set;
    node[n].waits = new_set;
    node[n].elected_end = node[n].end;
    node[n].follows = 0;
    node[n].tried = 0
}

inline stand(n, is_late) {
    d_step {
        may_stand(n) && !is_leader(n) && reg.epoch < EPOCHS ->
        printf("%d stands for epoch %d, late %d\n", n, reg.epoch + 1, is_late);
        forget_leadership(n);
        m = reg.set;
        if
        :: reg.leader != n && size(reg.set) > MIN -> m = reg.set & ~bit_of(reg.leader)
        :: else
        fi;
#ifdef WITNESS_COMMIT_AFTER_REPLACEMENT
        if
        :: reg.epoch == 1 && n == 1 && reg.set == 3 && acknowledged[0] && !is_late -> old_leader_stays = 1
        :: else
        fi;
#endif
        node[n].tried = reg.epoch + 1;
#ifdef NO_CONFIRMATION
        start_serving(n, reg.epoch + 1, m);
#endif
        compare_and_set(reg.epoch + 1, n, m, is_late);
        m = 0;
        check_nothing_lost()
    }
}

#ifdef NO_NEW_EPOCH_AFTER_RESTART
#define is_confirmed(n) (reg.leader == n && (node[n].tried == reg.epoch || !node[n].suspect))
#else
#define is_confirmed(n) (reg.leader == n && node[n].tried == reg.epoch)
#endif

inline confirm(n) {
    d_step {
        is_confirmed(n) && node[n].leads == 0 && node[n].epoch <= reg.epoch ->
        printf("%d serves epoch %d\n", n, reg.epoch);
        start_serving(n, reg.epoch, reg.set);
        check_nothing_lost()
    }
}

/* ---- Entries and acknowledgements ---- */

inline write(L) {
    d_step {
        node[L].leads && node[L].end < LENGTH ->
        printf("%d writes entry %d of epoch %d\n", L, node[L].end, node[L].leads);
        assert(is_new(node[L].leads, node[L].end));
        node[L].log[node[L].end] = node[L].leads;
        node[L].end++
    }
}

inline cut(n, o) {
    do
    :: node[n].end > o ->
        node[n].end--;
        node[n].log[node[n].end] = 0
    :: else -> break
    od
}

#ifdef NO_TRUNCATION_BEFORE_FIRST_WRITE
#define truncates(L) (node[L].end && node[L].log[node[L].end - 1] == node[L].leads)
#else
#define truncates(L) true
#endif

/* A node that leads an older epoch steps down. */
inline open_stream(F, L) {
    d_step {
        node[L].leads && node[F].epoch <= node[L].leads && node[F].leads < node[L].leads && node[F].follows != L + 1 ->
        printf("%d opens a stream to %d\n", F, L);
        forget_leadership(F);
        node[F].epoch = node[L].leads;
        node[F].follows = L + 1;
        k = 0;
        do
        :: k < node[F].end && k < node[L].end && node[F].log[k] == node[L].log[k] -> k++
        :: else -> break
        od;
#ifdef NO_COMMON_PREFIX
        if
        :: node[F].committed < k -> k = node[F].committed
        :: else
        fi;
#endif
        if
        :: truncates(L) ->
#ifdef WITNESS_TRUNCATION
            assert(!(acknowledged[0] && node[F].end > k));
#endif
            cut(F, k)
        :: else
        fi;
        k = 0;
#ifdef NO_DISCARD_AT_NEW_STREAM
        if
        :: node[L].ack[F] > node[F].end
        :: else -> node[L].ack[F] = 1 + node[F].end
        fi;
#else
        node[L].ack[F] = 1 + node[F].end;
#endif
        if
        :: node[F].suspect -> suspect_target = node[L].end
        :: else
        fi;
        check_nothing_lost()
    }
}

inline replicate(F, L) {
    d_step {
        node[F].follows == L + 1 && node[F].end < node[L].end ->
        printf("%d acknowledges entry %d to %d\n", F, node[F].end, L);
        node[F].log[node[F].end] = node[L].log[node[F].end];
        node[F].end++;
#ifdef NO_COMMON_PREFIX
        node[F].committed = node[L].committed; /* a follower learns it from the stream */
#endif
        if
        :: node[L].ack[F] < 1 + node[F].end -> node[L].ack[F] = 1 + node[F].end
        :: else
        fi
    }
}

#define has_ack(L, F, o) (L == F || !has(node[L].waits, F) || node[L].ack[F] > o)

/* The next offset is committed, and the client gets its OK. */
inline commit(L) {
    d_step {
        node[L].leads && node[L].committed < node[L].end && has_ack(L, 0, node[L].committed + 1) &&
            has_ack(L, 1, node[L].committed + 1) && has_ack(L, 2, node[L].committed + 1) ->
        printf("%d commits entry %d of epoch %d\n", L, node[L].committed, node[L].log[node[L].committed]);
        assert(is_acknowledged(L, node[L].committed));
        acknowledged[node[L].committed] = node[L].log[node[L].committed];
        node[L].committed++;
#ifdef WITNESS_COMMIT_AFTER_FAILOVER
        assert(!(L != 0 && acknowledged[0] == 1 && acknowledged[1] == 2));
#endif
#ifdef WITNESS_COMMIT_AFTER_SHRINK
        assert(!(node[L].leads == 1 && size(node[L].set) == 2));
#endif
#ifdef WITNESS_COMMIT_AFTER_GROW
        assert(!(node[L].leads == 1 && size(node[L].set) == 3));
#endif
#ifdef WITNESS_COMMIT_AFTER_REPLACEMENT
        assert(!(old_leader_stays && node[L].leads == 2 && acknowledged[1] == 2 && !has(node[L].set, 0)));
#endif
        check_nothing_lost()
    }
}

/* ---- Membership ---- */

#define is_current(L) (is_leader(L) && reg.set == node[L].set) /* the revision is the one that it has read */

#ifdef NO_ELECTED_END
#define reaches_elected_end(L, F) true
#else
#define reaches_elected_end(L, F) (node[L].ack[F] > node[L].elected_end)
#endif
#ifdef NO_COMMITTED_END
#define reaches_committed(L, F) (node[L].ack[F] > 0)
#else
#define reaches_committed(L, F) (node[L].ack[F] > node[L].committed)
#endif
#define is_caught_up(L, F) (reaches_elected_end(L, F) && reaches_committed(L, F))

#ifdef NO_CATCHING_UP
#define may_add(L, F) true
#else
#define may_add(L, F) is_caught_up(L, F)
#endif

inline add(L, F, is_late) {
    d_step {
        is_current(L) && !has(reg.set, F) && may_add(L, F) ->
        printf("%d adds %d, late %d\n", L, F, is_late);
#ifndef NO_COUNTING_BEFORE
        node[L].waits = node[L].waits | bit_of(F);
#endif
        compare_and_set(reg.epoch, L, reg.set | bit_of(F), is_late);
        check_nothing_lost()
    }
}

#ifdef NO_MINIMUM
#define SMALLEST 1
#else
#define SMALLEST MIN
#endif

inline remove(L, F, is_late) {
    d_step {
        is_current(L) && has(reg.set, F) && size(reg.set) > SMALLEST ->
        printf("%d removes %d, late %d\n", L, F, is_late);
        compare_and_set(reg.epoch, L, reg.set & ~bit_of(F), is_late);
        check_nothing_lost()
    }
}

/* The leader learns by a reply or a read that the revision has changed: its other proposals have failed. */
inline learn_set(L) {
    d_step {
        is_leader(L) && reg.set != node[L].set ->
        printf("%d reads set %d\n", L, reg.set);
        node[L].set = reg.set;
        node[L].waits = reg.set
    }
}

#ifdef NO_UNION
inline assume_failure(L) {
    d_step {
        is_current(L) && node[L].waits != node[L].set ->
        printf("%d takes an unchanged revision for a failure\n", L);
        node[L].waits = node[L].set
    }
}
#endif

#ifdef NO_SUSPECT_TARGET
#define reaches_target(L, F) true
#else
#define reaches_target(L, F) (node[L].ack[F] > suspect_target)
#endif

inline clear_suspect(F, L) {
    d_step {
        node[F].suspect && node[F].follows == L + 1 && reaches_target(L, F) ->
        printf("%d is no longer suspect\n", F);
#ifdef WITNESS_CLEARED_SUSPECT
        assert(!(acknowledged[1] && has(reg.set, F)));
#endif
        node[F].suspect = 0;
        suspect_target = 0;
        check_nothing_lost()
    }
}

/* ---- Faults ---- */

inline restart(n) {
    forget_leadership(n);
    node[n].follows = 0;
    node[n].tried = 0;
    node[n].ack[0] = 0;
    node[n].ack[1] = 0;
    node[n].ack[2] = 0;
#ifdef NO_PERSISTED_EPOCH
    node[n].epoch = 0;
#endif
    if
    :: node[n].suspect -> suspect_target = 0
    :: else
    fi
}

inline kill(n) {
    d_step {
        node[n].leads || node[n].follows || node[n].tried ->
        printf("%d is killed\n", n);
        restart(n);
        check_nothing_lost()
    }
}

inline lose_power(n, kept) {
    d_step {
        node[n].end >= kept && !(node[0].suspect && n != 0) && !(node[1].suspect && n != 1) &&
            !(node[2].suspect && n != 2) ->
        printf("%d loses power and keeps %d entries\n", n, kept);
        restart(n);
        cut(n, kept);
        node[n].suspect = 1;
        check_nothing_lost()
    }
}

#define PAIRS(action) \
    :: action(0, 1) :: action(0, 2) :: action(1, 0) :: action(1, 2) :: action(2, 0) :: action(2, 1)
#define PAIRS_AT_ONCE_OR_LATE(action) \
    :: action(0, 1, 0) :: action(0, 2, 0) :: action(1, 0, 0) :: action(1, 2, 0) :: action(2, 0, 0) :: action(2, 1, 0) \
    :: action(0, 1, 1) :: action(0, 2, 1) :: action(1, 0, 1) :: action(1, 2, 1) :: action(2, 0, 1) :: action(2, 1, 1)

active proctype cluster() {
    d_step { /* node 0 leads epoch 1, with all nodes in sync */
        reg.epoch = 1;
#if defined(WITNESS_COMMIT_AFTER_GROW) || defined(WITNESS_COMMIT_AFTER_REPLACEMENT)
        reg.set = 3; /* nodes 0 and 1 */
#else
        reg.set = 7;
#endif
        node[0].tried = 1
    }
    do
    :: confirm(0) :: confirm(1) :: confirm(2)
    :: write(0) :: write(1) :: write(2)
    :: commit(0) :: commit(1) :: commit(2)
    :: learn_set(0) :: learn_set(1) :: learn_set(2)
#ifdef NO_UNION
    :: assume_failure(0) :: assume_failure(1) :: assume_failure(2)
#endif
    :: stand(0, 0) :: stand(1, 0) :: stand(2, 0) :: stand(0, 1) :: stand(1, 1) :: stand(2, 1)
    :: kill(0) :: kill(1) :: kill(2)
    :: lose_power(0, 0) :: lose_power(1, 0) :: lose_power(2, 0)
    :: lose_power(0, 1) :: lose_power(1, 1) :: lose_power(2, 1)
    :: lose_power(0, 2) :: lose_power(1, 2) :: lose_power(2, 2)
#if LENGTH == 3
    :: lose_power(0, 3) :: lose_power(1, 3) :: lose_power(2, 3)
#endif
    :: apply_late()
    PAIRS(open_stream)
    PAIRS(replicate)
    PAIRS(clear_suspect)
    PAIRS_AT_ONCE_OR_LATE(add)
    PAIRS_AT_ONCE_OR_LATE(remove)
    od
}
