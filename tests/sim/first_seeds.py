"""Where the search for a seed that catches a variant begins, for those that the first few do not catch.

Seeds change their meaning with the simulation: when a variant is caught no more, look for it with
`python -m tests.sim.run --variants NAME --seeds 2000`, or for all of them without a name. No variant may need more.
"""

from __future__ import annotations

FIRST_SEED = {
    "back_edge_is_not_logged": 27,
    "bases_are_not_kept": 17,
    "changed_pane_counts_as_written": 454,
    "changes_of_an_aborted_checkpoint_are_forgotten": 5,
    "claim_without_a_second_look": 1_320,
    "commit_before_publication": 11,
    "deleted_timer_fires": 78,
    "drain_drops_what_was_read": 47,
    "drained_input_is_over_for_good": 1_564,
    "drained_source_counts_as_read": 47,
    "every_attempt_starts_from_the_savepoint": 68,
    "failed_savepoint_is_left_half_written": 110,
    "fired_timers_are_in_the_snapshot": 173,
    "frozen_state_sees_later_rows": 53,
    "join_side_is_not_in_the_snapshot": 66,
    "joined_rows_go_too_early": 14,
    "late_manifest_of_an_old_attempt_counts": 72,
    "late_rows_are_dropped": 12,
    "log_is_replayed_twice": 27,
    "loop_ends_although_it_is_not_empty": 345,
    "lost_region_counts_as_finished": 7,
    "lost_region_keeps_its_snapshots": 7,
    "lost_reply_loses_the_epoch": 184,
    "manifest_replaced": 172,
    "old_attempt_is_heard": 1_573,
    "panes_are_forgotten_on_restore": 36,
    "partners_are_forgotten_on_restore": 639,
    "parts_without_attempt": 5,
    "region_claims_while_a_manifest_is_written": 170,
    "rescaled_before_the_checkpoint_is_complete": 16,
    "results_that_wait_are_lost": 101,
    "rows_in_flight_are_lost": 101,
    "sessions_are_forgotten_on_restore": 25,
    "sessions_are_not_merged": 25,
    "splits_are_taken_as_one": 46,
    "state_files_without_attempt": 17,
    "timers_are_lost_on_restore": 306,
    "timers_fire_out_of_order": 144,
    "timers_of_the_clock_are_lost_on_restore": 187,
    "unknown_outcome_is_a_failure": 80,
    "watermark_is_forgotten_on_restore": 639,
    "watermark_is_the_greatest": 12,
    "watermarks_overtake_calls": 64,
    "window_is_emitted_early": 12,
}
