"""What every rank of test_sharding.py runs: each check compares sharded parameters with whole ones on one process."""

import sys
from functools import partial

import sharding_attach as clip
import sharding_steps as steps
import sharding_training as training
import sharding_zero as zero
import torch
from ranks import leave_group
from sharding_cases import WORLD

FLAT = [
    steps.check_steps,
    partial(steps.check_steps, torch.bfloat16),
    partial(steps.check_steps, torch.float64),
    steps.check_a_threshold_that_follows_the_norms,
    steps.check_below_lam_is_exactly_sgd,
    steps.check_extremes,
    steps.check_a_rank_with_inf,
    steps.check_a_rank_without_gradients,
    steps.check_rounds,
    steps.check_a_round_is_clipped_by_the_norm_of_all_parts,
    steps.check_compiled_step,
    steps.check_a_scaler_that_differs_between_ranks,
    steps.check_versions_copies_and_groups,
    training.check_fully_shard,
    training.check_checkpoints,
    training.check_grad_scaler,
    training.check_sequence_parallel,
    training.check_refusals,
    clip.check_clip_grad_norm,
    clip.check_clip_grad_norm_of_a_rank_with_inf_or_nothing,
    clip.check_a_partial_gradient_is_clipped_by_the_norm_of_its_sum,
    clip.check_compiled_clip,
    clip.check_attach,
    clip.check_attach_skips_on_all_ranks,
    clip.check_attach_to_zero,
    clip.check_refusals_of_a_clip,
    zero.check_zero,
    zero.check_zero_trains_as_one_process,
    zero.check_zero_rounds,
    zero.check_others_are_not_taken_for_zero,
]
SQUARE = [training.check_hybrid_shard, training.check_tensor_parallel_and_fully_shard]

for check in SQUARE if WORLD == 4 else FLAT:
    print(check, file=sys.stderr, flush=True)
    check()
leave_group()
