//! KV memory in blocks of a fixed number of tokens, and the prefix cache.
//!
//! The pool knows blocks by number. A block has a reference count; at zero it joins the free list.
//! A free block keeps its content, and can be found by it, until it is handed out again: the prefix
//! cache costs no memory of its own. The free list is an LRU queue threaded through the blocks.
//!
//! Full blocks form chains. Each distinct content gets a [`PrefixId`] that is never used twice and
//! stands for *all* tokens from the start of the sequence to the end of the block, because a block
//! is keyed by its parent's id and its own tokens. A hit compares parent, tokens and, at the start of
//! a chain, the [`Namespace`]: the hash only finds the candidate, so a collision can lose a hit but
//! never give wrong text.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// A block of KV memory, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

impl BlockId {
    /// The number: its tokens occupy the slots from `index * block_size` on.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The content of a chain of full blocks, from the start of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixId(u64);

impl PrefixId {
    /// The empty chain.
    pub const START: PrefixId = PrefixId(0);
}

/// What besides tokens decides the content of KV: sequences share blocks only within a namespace.
/// The fields are tagged by being fields, so an adapter and a salt of the same name differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The adapter (LoRA) that the sequence runs with.
    pub adapter: Option<String>,
    /// A secret that keeps tenants from probing each other's prompts.
    pub salt: Option<String>,
}

#[derive(Debug)]
struct Block {
    refs: u32,
    content: Option<Content>,
}

/// What a full block holds; its tokens are in `BlockPool::tokens`.
#[derive(Debug)]
struct Content {
    id: PrefixId,
    parent: PrefixId,
    /// Present at the start of a chain only; later blocks inherit it through their parents.
    namespace: Option<Arc<Namespace>>,
    hash: u64,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

/// All blocks. See the module's documentation.
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    blocks: Vec<Block>,
    /// The tokens of registered blocks, `block_size` for each block.
    tokens: Vec<u32>,
    /// The free list: one link for each block, and a last one that closes the ring. Its `next` is
    /// the block to hand out next, its `previous` the one that was freed last.
    links: Vec<Link>,
    n_free: usize,
    index: HashMap<u64, BlockId>,
    hasher: RandomState,
    n_prefixes: u64,
}

impl BlockPool {
    /// A pool of free blocks. Memory for bookkeeping (not for KV) is taken now.
    ///
    /// # Panics
    /// When `block_size` is zero or the slots cannot be numbered with 32 bits.
    pub fn new(n_blocks: usize, block_size: usize) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let n_slots = n_blocks.checked_mul(block_size).filter(|&n| n < u32::MAX as usize);
        let n_slots = n_slots.expect("slots are numbered with 32 bits");
        let n = n_blocks as u32;
        let ring = n + 1;
        let link = |i| Link { previous: (i + ring - 1) % ring, next: (i + 1) % ring };
        BlockPool {
            block_size,
            blocks: (0..n).map(|_| Block { refs: 0, content: None }).collect(),
            tokens: vec![0; n_slots],
            links: (0..ring).map(link).collect(),
            n_free: n_blocks,
            // Twice the need: removals leave marks, and a table that is at most half full clears
            // them in place instead of growing.
            index: HashMap::with_capacity(2 * n_blocks),
            hasher: RandomState::new(),
            n_prefixes: PrefixId::START.0,
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All blocks, free or not.
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody references. Some of them may still be found by their content.
    pub fn n_free(&self) -> usize {
        self.n_free
    }

    /// Blocks that can be found by their content.
    pub fn n_cached(&self) -> usize {
        self.index.len()
    }

    /// How many references a block has.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].refs
    }

    /// Every block.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        (0..self.blocks.len() as u32).map(BlockId)
    }

    /// Takes the free block that has gone unused for longest; its content is forgotten.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let sentinel = self.blocks.len();
        let first = self.links[sentinel].next;
        if first as usize == sentinel {
            return None;
        }
        self.unlink(first);
        let block = &mut self.blocks[first as usize];
        block.refs = 1;
        if let Some(content) = block.content.take() {
            self.index.remove(&content.hash);
        }
        Some(BlockId(first))
    }

    /// Adds a reference to a block, which may be free.
    pub fn retain(&mut self, block: BlockId) {
        if self.blocks[block.index()].refs == 0 {
            self.unlink(block.0);
        }
        self.blocks[block.index()].refs += 1;
    }

    /// Drops a reference. A block without any is free: at the end of the queue if its content can be
    /// found, else at the front.
    pub fn release(&mut self, block: BlockId) {
        let Block { refs, content } = &mut self.blocks[block.index()];
        debug_assert!(*refs > 0, "{block:?} is released more often than it was taken");
        *refs -= 1;
        if *refs == 0 {
            let before = if content.is_some() {
                self.blocks.len() as u32
            } else {
                self.links[self.blocks.len()].next
            };
            self.link_before(block.0, before);
        }
    }

    /// The block that holds `tokens` after `parent`, and the id of the longer chain. `tokens` is one
    /// full block.
    pub fn lookup(
        &self,
        parent: PrefixId,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> Option<(BlockId, PrefixId)> {
        let block = *self.index.get(&self.hash(parent, namespace, tokens))?;
        let id = self.content_if_equal(block, parent, namespace, tokens)?;
        Some((block, id))
    }

    /// Makes a full block, whose KV has been computed, findable as `tokens` after `parent`, and gives
    /// the id of the longer chain. When an equal block can be found already, that one stays and its
    /// id is given. None when the hash collides with other content: the chain then ends.
    pub fn register(
        &mut self,
        block: BlockId,
        parent: PrefixId,
        namespace: &Arc<Namespace>,
        tokens: &[u32],
    ) -> Option<PrefixId> {
        debug_assert_eq!(tokens.len(), self.block_size);
        let hash = self.hash(parent, namespace, tokens);
        if let Some(&holder) = self.index.get(&hash) {
            return self.content_if_equal(holder, parent, namespace, tokens);
        }
        self.n_prefixes += 1;
        let id = PrefixId(self.n_prefixes);
        let namespace = (parent == PrefixId::START).then(|| Arc::clone(namespace));
        self.blocks[block.index()].content = Some(Content { id, parent, namespace, hash });
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.index.insert(hash, block);
        Some(id)
    }

    /// Forgets all content, as when the model's weights change.
    pub fn clear_cache(&mut self) {
        self.index.clear();
        for block in &mut self.blocks {
            block.content = None;
        }
    }

    /// Checks the free list, the counts and the index against each other.
    ///
    /// # Errors
    /// What is inconsistent.
    pub fn verify(&self) -> Result<(), String> {
        let sentinel = self.blocks.len() as u32;
        let mut n_listed = 0;
        let mut at = sentinel;
        loop {
            let next = self.links[at as usize].next;
            if self.links[next as usize].previous != at {
                return Err(format!("free list: {next} does not point back to {at}"));
            }
            at = next;
            if at == sentinel {
                break;
            }
            n_listed += 1;
            if self.blocks[at as usize].refs != 0 || n_listed > self.blocks.len() {
                return Err(format!("free list: block {at} is in use or listed twice"));
            }
        }
        let n_unreferenced = self.blocks.iter().filter(|b| b.refs == 0).count();
        if n_listed != self.n_free || n_unreferenced != self.n_free {
            let n_free = self.n_free;
            return Err(format!("{n_listed} listed, {n_unreferenced} unreferenced, {n_free} free"));
        }
        let n_contents = self.blocks.iter().filter(|b| b.content.is_some()).count();
        let all_found = self.index.iter().all(|(hash, block)| {
            self.blocks[block.index()].content.as_ref().is_some_and(|c| c.hash == *hash)
        });
        if n_contents != self.index.len() || !all_found {
            return Err(format!("{n_contents} contents, {} findable", self.index.len()));
        }
        Ok(())
    }

    fn hash(&self, parent: PrefixId, namespace: &Namespace, tokens: &[u32]) -> u64 {
        let namespace = (parent == PrefixId::START).then_some(namespace);
        self.hasher.hash_one((parent, namespace, tokens))
    }

    fn content_if_equal(
        &self,
        block: BlockId,
        parent: PrefixId,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> Option<PrefixId> {
        let content = self.blocks[block.index()].content.as_ref()?;
        let start = block.index() * self.block_size;
        let is_equal = content.parent == parent
            && content.namespace.as_deref().is_none_or(|own| own == namespace)
            && self.tokens[start..start + self.block_size] == *tokens;
        is_equal.then_some(content.id)
    }

    fn unlink(&mut self, block: u32) {
        let Link { previous, next } = self.links[block as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.n_free -= 1;
    }

    fn link_before(&mut self, block: u32, next: u32) {
        let previous = self.links[next as usize].previous;
        self.links[block as usize] = Link { previous, next };
        self.links[previous as usize].next = block;
        self.links[next as usize].previous = block;
        self.n_free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(adapter: Option<&str>, salt: Option<&str>) -> Arc<Namespace> {
        Arc::new(Namespace { adapter: adapter.map(str::to_owned), salt: salt.map(str::to_owned) })
    }

    #[test]
    fn hands_out_each_block_once_and_no_more() {
        let mut pool = BlockPool::new(3, 2);
        let mut taken: Vec<_> = (0..3).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(pool.allocate(), None);
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 3);
        pool.release(taken[1]);
        assert_eq!(pool.n_free(), 1);
        assert_eq!(pool.allocate(), Some(taken[1]));
        pool.verify().unwrap();
        assert_eq!(BlockPool::new(0, 2).allocate(), None);
    }

    #[test]
    fn freed_content_is_found_until_its_block_is_handed_out_oldest_first() {
        let mut pool = BlockPool::new(3, 2);
        let ns = namespace(None, None);
        let blocks: Vec<_> = (0..3).map(|_| pool.allocate().unwrap()).collect();
        let contents = [[1, 2], [3, 4], [5, 6]];
        for (block, tokens) in blocks.iter().zip(&contents) {
            pool.register(*block, PrefixId::START, &ns, tokens).unwrap();
        }
        for at in [1, 2, 0] {
            pool.release(blocks[at]);
        }
        let find = |pool: &BlockPool, at: usize| {
            pool.lookup(PrefixId::START, &ns, &contents[at]).map(|hit| hit.0)
        };
        assert_eq!(find(&pool, 1), Some(blocks[1]));
        pool.retain(blocks[1]);
        pool.verify().unwrap();
        // Block 1 is in use again, so the oldest free one is 2.
        assert_eq!(pool.allocate(), Some(blocks[2]));
        assert_eq!(find(&pool, 2), None);
        assert_eq!(find(&pool, 0), Some(blocks[0]));
        pool.verify().unwrap();
        pool.clear_cache();
        assert_eq!(find(&pool, 0), None);
        pool.verify().unwrap();
    }

    #[test]
    fn blocks_without_content_are_reused_before_cached_ones() {
        let mut pool = BlockPool::new(2, 1);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.register(a, PrefixId::START, &namespace(None, None), &[1]).unwrap();
        pool.release(a);
        pool.release(b);
        assert_eq!(pool.allocate(), Some(b));
    }

    /// Case K3, and salts against salts.
    #[test]
    fn namespaces_never_meet() {
        let mut pool = BlockPool::new(8, 2);
        let spaces = [
            namespace(None, None),
            namespace(Some("X"), None),
            namespace(None, Some("X")),
            namespace(Some("X"), Some("X")),
            namespace(Some(""), None),
            namespace(None, Some("")),
        ];
        for (i, ns) in spaces.iter().enumerate() {
            assert_eq!(pool.lookup(PrefixId::START, ns, &[1, 2]), None, "{ns:?} hits {i} others");
            let block = pool.allocate().unwrap();
            let id = pool.register(block, PrefixId::START, ns, &[1, 2]).unwrap();
            assert_eq!(pool.lookup(PrefixId::START, ns, &[1, 2]), Some((block, id)));
        }
    }

    #[test]
    fn a_chain_is_its_whole_history() {
        let mut pool = BlockPool::new(8, 2);
        let ns = namespace(None, None);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate().unwrap()).collect();
        let a = pool.register(blocks[0], PrefixId::START, &ns, &[1, 2]).unwrap();
        let b = pool.register(blocks[1], PrefixId::START, &ns, &[9, 9]).unwrap();
        let a_then = pool.register(blocks[2], a, &ns, &[3, 4]).unwrap();
        assert_eq!(pool.lookup(b, &ns, &[3, 4]), None);
        assert_eq!(pool.lookup(PrefixId::START, &ns, &[3, 4]), None);
        assert_eq!(pool.lookup(a, &ns, &[3, 4]), Some((blocks[2], a_then)));
        // A second block with the same content joins the chain of the first.
        assert_eq!(pool.register(blocks[3], a, &ns, &[3, 4]), Some(a_then));
        assert_eq!(pool.lookup(a, &ns, &[3, 4]), Some((blocks[2], a_then)));
        pool.verify().unwrap();
    }

    #[test]
    fn a_hash_collision_is_a_miss() {
        let mut pool = BlockPool::new(2, 2);
        let ns = namespace(None, None);
        let block = pool.allocate().unwrap();
        pool.register(block, PrefixId::START, &ns, &[1, 2]).unwrap();
        // As if other tokens, another namespace and another history had the hash of this block.
        let salted = namespace(None, Some("s"));
        let history = PrefixId(77);
        for (parent, ns, tokens) in [
            (PrefixId::START, &ns, [3, 4]),
            (PrefixId::START, &salted, [1, 2]),
            (history, &ns, [1, 2]),
        ] {
            let hash = pool.hash(parent, ns, &tokens);
            pool.index.insert(hash, block);
            assert_eq!(pool.lookup(parent, ns, &tokens), None);
            let other = BlockId(1);
            assert_eq!(pool.register(other, parent, ns, &tokens), None);
        }
    }
}
