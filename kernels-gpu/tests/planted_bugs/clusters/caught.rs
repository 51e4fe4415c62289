//! What must be found in which wrong exchange.

use ferroflash_kernels::emu::{Asynchronous, Cluster, Kind};

use super::{Arrive, Bug, How, Via, run};
use crate::{Shows, accept, catch};

const VIAS: [Via; 3] = [Via::BulkStore, Via::AsyncStore, Via::Store];
const ARRIVALS: [Arrive; 2] = [Arrive::Cluster, Arrive::Reuse];

#[test]
fn the_right_exchanges_pass() {
    for via in VIAS {
        for arrive in ARRIVALS {
            accept(|options| run(How { via, arrive }, Bug::None, options));
        }
    }
}

macro_rules! caught {
    ($($name:ident: $bug:ident, $vias:expr $(, $arrivals:expr)? => $accepts:expr;)*) => { $(
        #[test]
        fn $name() {
            let arrivals: &[Arrive] = caught!(@ $($arrivals)?);
            for via in $vias {
                for &arrive in arrivals {
                    let how = How { via, arrive };
                    catch(Shows::As($accepts), |options| run(how, Bug::$bug, options));
                }
            }
        }
    )* };
    (@) => { &ARRIVALS };
    (@ $arrivals:expr) => { &$arrivals };
}

fn is_deadlock(kind: &Kind) -> bool {
    matches!(kind, Kind::Deadlock { .. })
}

fn is_conflict(kind: &Kind) -> bool {
    matches!(kind, Kind::Race { .. } | Kind::InFlight { .. })
}

fn is_operand_of_no_block(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Cluster(Cluster::NoSuchRank {
            rank: 2,
            blocks: 2,
            ..
        })
    )
}

caught! {
    no_meeting_before_the_first_access: NoFirstMeeting, VIAS =>
        |kind| matches!(kind, Kind::Cluster(Cluster::NotStarted { .. }));
    barriers_made_after_the_meeting: BarriersMadeAfterMeeting, VIAS => |kind| matches!(
        kind,
        Kind::Asynchronous(Asynchronous::NoMbarrier { .. }) | Kind::Race { .. }
    );
    barriers_that_the_copy_engine_does_not_see: BarriersNotFenced, VIAS => |kind| matches!(
        kind,
        Kind::Asynchronous(Asynchronous::Unfenced { fence: "fence.mbarrier_init", .. })
    );
    no_meeting_after_the_last_access: NoLastMeeting, VIAS =>
        |kind| matches!(kind, Kind::Cluster(Cluster::Ended { .. }));
    a_rank_out_of_the_cluster: RankOutOfCluster, VIAS => is_operand_of_no_block;
    the_own_rank_for_the_peers: OwnRank, VIAS => |kind| is_deadlock(kind) || matches!(
        kind,
        Kind::Asynchronous(Asynchronous::TooManyArrivals { .. }) | Kind::Race { .. } | Kind::InFlight { .. }
    );
    a_store_to_the_own_block: NoMapa, [Via::BulkStore, Via::AsyncStore] =>
        |kind| matches!(kind, Kind::Cluster(Cluster::MbarrierElsewhere { .. }));
    a_plain_store_to_the_own_block: NoMapa, [Via::Store] => is_conflict_or_uninitialised;
    bytes_that_count_on_the_senders_barrier: BarrierOfSender, [Via::BulkStore, Via::AsyncStore] =>
        |kind| matches!(kind, Kind::Cluster(Cluster::MbarrierElsewhere { .. }));
    fewer_bytes_expected_than_come: FewBytes, VIAS =>
        |kind| is_conflict_or_uninitialised(kind) || is_deadlock(kind);
    more_bytes_expected_than_come: ManyBytes, VIAS => is_deadlock;
    a_multicast_to_nobody: NoBlockInMask, VIAS =>
        |kind| matches!(kind, Kind::Cluster(Cluster::NoBlock { .. }));
    a_multicast_to_a_block_that_is_not_there: ThirdBlockInMask, VIAS => is_operand_of_no_block;
    a_multicast_that_leaves_out_the_peer: OwnBlockInMask, VIAS => is_deadlock;
    a_tile_reloaded_before_it_was_read: TileNotReleased, VIAS => is_conflict_or_too_many;
    a_tile_of_which_the_peer_is_not_asked: TileReleasedByOwnBlock, VIAS => is_conflict;
    a_tile_released_before_it_was_read: TileReleasedEarly, VIAS => is_conflict_or_too_many;
    a_place_sent_to_before_it_was_read: SendsUnreleased, VIAS => is_conflict;
    a_place_released_before_it_was_read: ReleasesEarly, VIAS => is_conflict;
    a_wait_that_acquires_nothing_of_the_peer: WaitsForBlockOnly, VIAS, [Arrive::Cluster] => is_conflict;
    what_is_sent_and_released_for_reuse_alone: SendsForReuse, [Via::Store] => is_conflict;
    what_is_sent_without_a_fence: NoFence, [Via::BulkStore] => |kind| matches!(
        kind,
        Kind::Asynchronous(Asynchronous::Unfenced { fence: "fence.proxy.async", .. })
    );
    an_arrival_without_a_wait: ArrivesTwice, VIAS =>
        |kind| matches!(kind, Kind::Cluster(Cluster::ArrivedTwice { .. }));
    a_wait_without_an_arrival: WaitsWithoutArriving, VIAS =>
        |kind| matches!(kind, Kind::Cluster(Cluster::NotArrived { .. }));
    a_meeting_that_a_warp_does_not_come_to: OneWarpMeets, VIAS =>
        |kind| is_deadlock(kind) || matches!(
            kind,
            Kind::Cluster(Cluster::NotStarted { .. }) | Kind::Race { .. } | Kind::Asynchronous(Asynchronous::NoMbarrier { .. })
        );
}

fn is_conflict_or_uninitialised(kind: &Kind) -> bool {
    is_conflict(kind) || matches!(kind, Kind::Uninitialised { .. })
}

fn is_conflict_or_too_many(kind: &Kind) -> bool {
    let too_many = matches!(
        kind,
        Kind::Asynchronous(Asynchronous::TooManyArrivals { .. })
    );
    is_conflict(kind) || too_many
}
