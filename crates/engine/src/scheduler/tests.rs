use super::*;

fn scheduler(n_blocks: usize, block_size: usize) -> Scheduler {
    Scheduler::new(Config { n_blocks, block_size, ..Config::default() })
}

/// Runs a step as a model would, without one: every finished row gets `token`.
fn step(scheduler: &mut Scheduler, budget: usize, token: u32) -> StepPlan {
    let mut plan = StepPlan::default();
    scheduler.schedule(budget, &mut plan);
    scheduler.verify().unwrap();
    assert!(plan.n_tokens() <= budget.max(1));
    scheduler.complete(&plan);
    for row in 0..plan.n_seqs() {
        if !plan.logits_of(row).is_empty() {
            scheduler.push_token(plan.seqs[row], token);
        }
    }
    scheduler.verify().unwrap();
    plan
}

fn counts(plan: &StepPlan) -> Vec<(u64, usize)> {
    (0..plan.n_seqs()).map(|row| (plan.seqs[row].0, plan.tokens_of(row).len())).collect()
}

#[test]
fn a_plan_is_flat_arrays_with_slots_from_the_table() {
    let mut s = scheduler(8, 4);
    let a = s.submit(&[10, 11, 12, 13, 14], 20, Namespace::default()).unwrap();
    let b = s.submit(&[20, 21], 20, Namespace::default()).unwrap();
    let plan = step(&mut s, 100, 99);
    assert_eq!(plan.seqs, [a, b]);
    assert_eq!(plan.tokens, [10, 11, 12, 13, 14, 20, 21]);
    assert_eq!(plan.positions, [0, 1, 2, 3, 4, 0, 1]);
    assert_eq!(plan.rows, [0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(plan.slots, [0, 1, 2, 3, 4, 8, 9]);
    assert_eq!((plan.table_stride, plan.table(0), plan.table(1)), (2, &[0, 1][..], &[2, 0][..]));
    assert_eq!(plan.token_starts, [0, 5, 7]);
    assert_eq!(plan.context_lens, [5, 2]);
    assert_eq!(plan.logits_tokens, [4, 6]);
    assert_eq!(plan.logits_starts, [0, 1, 2]);
    let plan = step(&mut s, 100, 98);
    assert_eq!((&plan.tokens[..], &plan.positions[..]), (&[99, 99][..], &[5, 2][..]));
    assert_eq!(plan.slots, [5, 10]);
}

#[test]
fn decodes_come_first_and_prefills_share_what_is_left_in_order_of_arrival() {
    let mut s = scheduler(64, 4);
    s.submit(&[1, 2], 40, Namespace::default()).unwrap();
    assert_eq!(counts(&step(&mut s, 8, 9)), [(1, 2)]);
    s.submit(&[3; 10], 40, Namespace::default()).unwrap();
    s.submit(&[4; 10], 40, Namespace::default()).unwrap();
    assert_eq!(counts(&step(&mut s, 8, 9)), [(1, 1), (2, 7)]);
    let plan = step(&mut s, 8, 9);
    assert_eq!(counts(&plan), [(1, 1), (2, 3), (3, 4)]);
    assert_eq!(plan.logits_starts, [0, 1, 2, 2]);
    assert_eq!(counts(&step(&mut s, 8, 9)), [(1, 1), (2, 1), (3, 6)]);
    assert_eq!(counts(&step(&mut s, 8, 9)), [(1, 1), (2, 1), (3, 1)]);
}

#[test]
fn a_budget_smaller_than_the_batch_goes_round() {
    let mut s = scheduler(64, 4);
    for token in 0..5 {
        s.submit(&[token], 40, Namespace::default()).unwrap();
    }
    let mut served = [0; 6];
    step(&mut s, 100, 9);
    for _ in 0..10 {
        for (id, n) in counts(&step(&mut s, 2, 9)) {
            served[id as usize] += n;
        }
    }
    assert_eq!(served, [0, 4, 4, 4, 4, 4]);
}

#[test]
fn a_chunk_bounds_one_sequence_not_the_step() {
    let mut s = Scheduler::new(Config { chunk: 3, ..Config::default() });
    s.submit(&[1; 7], 40, Namespace::default()).unwrap();
    s.submit(&[2; 7], 40, Namespace::default()).unwrap();
    assert_eq!(counts(&step(&mut s, 100, 9)), [(1, 3), (2, 3)]);
}

#[test]
fn the_youngest_makes_room_and_returns_first() {
    // Four blocks of 2: two sequences of 4 tokens fill them.
    let mut s = scheduler(4, 2);
    s.submit(&[1; 4], 8, Namespace::default()).unwrap();
    s.submit(&[2; 4], 8, Namespace::default()).unwrap();
    s.submit(&[3; 2], 8, Namespace::default()).unwrap();
    assert_eq!(counts(&step(&mut s, 100, 9)), [(1, 4), (2, 4)]);
    // The first needs a third block: the second loses its own, the third stays behind it.
    assert_eq!(counts(&step(&mut s, 100, 9)), [(1, 1)]);
    assert_eq!((s.stats().running, s.stats().waiting, s.stats().preemptions), (1, 2, 1));
    s.remove(SeqId(1)).unwrap();
    // Its first block was not taken and is found again.
    let plan = step(&mut s, 100, 9);
    assert_eq!(counts(&plan)[0], (2, 3));
    assert_eq!(plan.positions[0], 2);
    assert_eq!(s.usage(SeqId(2)).unwrap().cached_tokens, 0, "not the prompt's first time");
}

#[test]
fn the_budget_of_a_victim_goes_to_others() {
    let mut s =
        Scheduler::new(Config { n_blocks: 28, block_size: 1, chunk: 3, ..Config::default() });
    s.submit(&[1; 20], 25, Namespace::default()).unwrap();
    s.submit(&[2; 6], 25, Namespace::default()).unwrap();
    s.submit(&[3], 25, Namespace::default()).unwrap();
    assert_eq!(counts(&step(&mut s, 7, 9)), [(1, 3), (2, 3), (3, 1)]);
    for _ in 0..5 {
        assert_eq!(counts(&step(&mut s, 4, 9)), [(3, 1), (1, 3)]);
    }
    // One block is free. The third sequence is planned with it, then preempted by the first, and
    // its token of the budget lets the second have two.
    assert_eq!(counts(&step(&mut s, 4, 9)), [(1, 2), (2, 2)]);
    assert_eq!(s.stats().preemptions, 1);
}

#[test]
fn a_prefix_hit_never_covers_the_last_token() {
    let mut s = scheduler(16, 4);
    let prompt: Vec<u32> = (0..8).collect();
    let id = s.submit(&prompt, 20, Namespace::default()).unwrap();
    step(&mut s, 100, 9);
    s.remove(id).unwrap();
    let id = s.submit(&prompt, 20, Namespace::default()).unwrap();
    let plan = step(&mut s, 100, 9);
    assert_eq!(plan.positions, [4, 5, 6, 7]);
    assert_eq!(plan.n_logits(), 1);
    assert_eq!(s.usage(id).unwrap().cached_tokens, 4);
}

/// Case K13: the cached start is used up to the edit and no further.
#[test]
fn an_edit_in_the_middle_ends_the_hit() {
    let mut s = scheduler(16, 2);
    let prompt: Vec<u32> = (0..9).collect();
    let id = s.submit(&prompt, 20, Namespace::default()).unwrap();
    step(&mut s, 100, 9);
    s.remove(id).unwrap();
    let mut edited = prompt;
    edited[5] = 77;
    s.submit(&edited, 20, Namespace::default()).unwrap();
    assert_eq!(step(&mut s, 100, 9).positions, [4, 5, 6, 7, 8]);
}

#[test]
fn running_sequences_share_blocks() {
    let mut s = scheduler(5, 2);
    let prompt = [1, 2, 3, 4, 5];
    s.submit(&prompt, 6, Namespace::default()).unwrap();
    step(&mut s, 100, 9);
    // Three of five blocks are taken; the second needs one of its own.
    s.submit(&prompt, 6, Namespace::default()).unwrap();
    let plan = step(&mut s, 100, 9);
    assert_eq!(plan.table(0)[..2], plan.table(1)[..2]);
    assert_ne!(plan.table(0)[2], plan.table(1)[2]);
    assert_eq!(s.stats().free_blocks, 1);
}

#[test]
fn nothing_is_shared_without_the_cache_or_across_namespaces() {
    for (prefix_cache, salt) in [(false, None), (true, Some("s".to_owned()))] {
        let config = Config { n_blocks: 8, block_size: 2, prefix_cache, ..Config::default() };
        let mut s = Scheduler::new(config);
        let id = s.submit(&[1; 5], 9, Namespace::default()).unwrap();
        step(&mut s, 100, 9);
        s.remove(id).unwrap();
        s.submit(&[1; 5], 9, Namespace { adapter: None, salt }).unwrap();
        assert_eq!(step(&mut s, 100, 9).positions, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn a_plan_that_was_not_computed_is_planned_again() {
    let mut s = scheduler(8, 2);
    s.submit(&[1; 5], 9, Namespace::default()).unwrap();
    let (mut first, mut second) = (StepPlan::default(), StepPlan::default());
    s.schedule(100, &mut first);
    s.schedule(100, &mut second);
    assert_eq!(first, second);
    s.verify().unwrap();
}

#[test]
fn what_can_never_fit_is_refused_with_both_counts() {
    let mut s =
        Scheduler::new(Config { n_blocks: 4, block_size: 8, max_waiting: 1, ..Config::default() });
    let submit =
        |s: &mut Scheduler, n: usize, limit| s.submit(&vec![1; n], limit, Namespace::default());
    assert_eq!(submit(&mut s, 0, 10), Err(AdmitError::EmptyPrompt));
    let error = submit(&mut s, 10, 10).unwrap_err();
    assert_eq!(error, AdmitError::ContextTooSmall { prompt: 10, context: 10 });
    assert!(error.to_string().contains("10 tokens"));
    let error = submit(&mut s, 32, 4096).unwrap_err();
    assert_eq!(error, AdmitError::PoolTooSmall { prompt: 32, capacity: 32 });
    assert_eq!(submit(&mut s, 31, 4096), Ok(SeqId(1)));
    assert_eq!(submit(&mut s, 1, 10), Err(AdmitError::QueueFull { limit: 1 }));
}

#[test]
fn a_sequence_can_be_removed_at_any_stage() {
    let mut s = Scheduler::new(Config { chunk: 2, max_running: 1, ..Config::default() });
    let a = s.submit(&[1; 5], 9, Namespace::default()).unwrap();
    let b = s.submit(&[2; 5], 9, Namespace::default()).unwrap();
    step(&mut s, 100, 9);
    assert_eq!(s.remove(b).unwrap().prompt_tokens, 5);
    assert_eq!(s.remove(b), None);
    assert_eq!(s.remove(a).unwrap().output_tokens, 0);
    assert!(!s.has_work());
    assert_eq!(s.stats().free_blocks, s.stats().blocks);
    assert!(!s.push_token(a, 1));
    let mut plan = StepPlan::default();
    s.schedule(10, &mut plan);
    assert!(plan.is_empty());
}
