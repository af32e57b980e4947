// Chooses how a launch moves its bytes: method, word width, divisors, grid. Pure functions of the message's shape
// and addresses.
#include <algorithm>
#include <bit>

#include "device/kernels/batch_body.hpp"

namespace gpudt::device {
namespace {

using datatype::Shape;
using datatype::ShapeKind;

constexpr std::int64_t narrow_limit = (std::int64_t{1} << 31) - 64;  ///< with room for rounding up

// --- what the choice is made from -----------------------------------------------------------------------------------

/// The widest word, of 16, 8, 4 or 1 bytes, that divides all addresses and lengths or-ed into `bits`.
std::int32_t word_of(Address bits) {
  const Address lowest = bits == 0 ? 16 : std::min<Address>(Address{1} << std::countr_zero(bits), 16);
  return lowest < 4 ? 1 : static_cast<std::int32_t>(lowest);
}

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Gives a contiguous message positions that equal its packed addresses modulo 16, so that words are possible
/// wherever both sides are misaligned alike.
void rebase_contiguous(KernelArgs& args) {
  Shape& shape = args.shape;
  const auto begin = static_cast<std::int64_t>(reinterpret_cast<Address>(args.packed) & 15);
  shape.offset += args.begin - begin;
  args.end = begin + (args.end - args.begin);
  args.begin = begin;
  shape.total = args.end;
  shape.run = args.end;
  shape.ndims = 0;
}

/// The widest word for Method::words: positions that are multiples of it are aligned on both sides.
std::int32_t natural_word(const KernelArgs& args) {
  const Address packed = reinterpret_cast<Address>(args.packed) - static_cast<Address>(args.begin);
  const Address user = reinterpret_cast<Address>(args.user);
  if (args.shape.kind == ShapeKind::contiguous)
    return word_of(packed | (user + static_cast<Address>(args.shape.offset)));
  return word_of(packed | user | static_cast<Address>(args.shape.align));
}

/// Whether warps can move groups of runs: equal short ones, of which most are in groups, on a packed side where groups
/// are 16-byte aligned.
bool suits_runs(const KernelArgs& args) {
  const Shape& shape = args.shape;
  if (shape.kind != ShapeKind::strided && shape.kind != ShapeKind::list) return false;
  if (shape.run < shortest_lane_run || shape.run > longest_lane_run) return false;
  const Address packed = reinterpret_cast<Address>(args.packed) - static_cast<Address>(args.begin);
  if (packed % 16 != 0 || args.end > narrow_limit) return false;
  const std::int64_t group = lanes * shape.run;
  const std::int64_t head = ceil_divide(args.begin, group) * group - args.begin;
  return 2 * head <= args.end - args.begin;
}

/// Whether 32 bits hold every position, in units of `unit` bytes, that the kernel computes with. Irregular lists are
/// searched in bytes.
bool fits_narrow(const KernelArgs& args, std::int64_t unit) {
  const Shape& shape = args.shape;
  const bool searched = shape.kind == ShapeKind::list && shape.run == 0;
  return args.end / unit <= narrow_limit && !(searched && shape.list_size > narrow_limit);
}

/// Whether the list is divided by its runs, in words of `word` bytes; if so, sets first_entry and last_entry.
bool suits_entries(KernelArgs& args, std::int32_t word, const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  const Shape& shape = args.shape;
  if (shape.kind != ShapeKind::list || shape.run > 0 || word < 4) return false;
  if (args.begin % word != 0 || args.end % word != 0) return false;
  if (args.end > narrow_limit - shape.list_longest) return false;  // the last run may end behind the range
  const std::int64_t bytes = args.end - args.begin;
  if (hints.packed_is_host && bytes > policy.entries.most_host_bytes) return false;
  const std::int64_t mean = ceil_divide(shape.list_size, shape.list_count);
  if (shape.list_longest >
      policy.entries.unevenness * std::min(mean, std::int64_t{word} << policy.entries.most_threads_log))
    return false;
  const std::int64_t repetitions = shape.total / shape.list_size;
  if (shape.list_count > narrow_limit / repetitions) return false;
  args.first_entry = 0;
  args.last_entry = shape.list_count * repetitions;
  if (bytes == shape.total) return true;
  if (hints.lookaside == nullptr) return false;
  const auto entry = [&](std::int64_t position) {
    const std::int64_t repetition = position / shape.list_size;
    return repetition * shape.list_count + datatype::find_block(hints.lookaside + shape.list_prefix, shape.list_count,
                                                                position - repetition * shape.list_size);
  };
  args.first_entry = entry(args.begin);
  args.last_entry = entry(args.end - 1) + 1;
  return true;
}

void choose_entry_threads(KernelArgs& args, const LaunchPolicy& policy) {
  const std::int64_t mean = ceil_divide(args.shape.list_size, args.shape.list_count * args.word);
  args.entry_threads_log = std::min(static_cast<std::int32_t>(std::bit_width(static_cast<std::uint64_t>(mean - 1))),
                                    policy.entries.most_threads_log);
}

void choose_method(KernelArgs& args, const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  const std::int64_t bytes = args.end - args.begin;
  const std::int64_t run = typical_run(args.shape);
  const std::int32_t word = natural_word(args);
  const bool general = args.shape.kind == ShapeKind::general;
  const bool words_fit = general || fits_narrow(args, word);
  args.word = word;
  args.method = Method::words;
  if (!words_fit) {
    args.method = Method::gather;
  } else if (suits_entries(args, word, hints)) {
    args.method = Method::entries;
    choose_entry_threads(args, policy);
    args.narrow = 1;
    return;
  } else if (word < 4) {
    if (suits_runs(args)) {
      args.method = Method::runs;
    } else if (bytes > policy.words.narrow_bytes || run >= policy.words.narrow_run) {
      args.method = Method::gather;
    }
  }
  if (args.method != Method::words) args.word = 16;
  args.narrow = !general && (args.method == Method::words || fits_narrow(args, 1)) ? 1 : 0;
}

void set_divisors(KernelArgs& args) {
  const Shape& shape = args.shape;
  const auto unit = static_cast<std::uint64_t>(args.method == Method::words ? args.word : 1);
  const bool narrow = args.narrow != 0;
  const auto by = [&](std::int64_t bytes) { return make_divisor(static_cast<std::uint64_t>(bytes) / unit, narrow); };
  switch (shape.kind) {
    case ShapeKind::contiguous:  // one run, which may end inside a word
      args.divide[0] = by(shape.run + static_cast<std::int64_t>(unit) - 1);
      break;
    case ShapeKind::strided:
      args.divide[0] = by(shape.run);
      break;
    case ShapeKind::list:
      args.divide[0] = by(shape.list_size);
      if (shape.run > 0) args.divide[datatype::max_dims] = by(shape.run);
      if (args.method == Method::entries)
        args.divide[datatype::max_dims] = make_divisor(static_cast<std::uint64_t>(shape.list_count), narrow);
      break;
    case ShapeKind::general:
      args.divide[0] = by(shape.total / shape.count);
      break;
    default:
      return;
  }
  for (int d = 1; d < shape.ndims; ++d)
    args.divide[d] = make_divisor(static_cast<std::uint64_t>(shape.dims[d].count), narrow);
}

/// Whether runs of less than `bytes` bytes are written, other than those of lists.
bool scatters(const KernelArgs& args, std::int64_t bytes) {
  return args.unpack != 0 && args.shape.kind != ShapeKind::list && typical_run(args.shape) < bytes;
}

/// The most blocks worth launching on data in GPUs' memory.
int most_blocks_on_gpus(const KernelArgs& args, const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  const bool within = !hints.packed_is_peer;
  const bool list = args.shape.kind == ShapeKind::list;
  if (args.method == Method::words) {
    const bool equal_runs = list && args.shape.run > 0;
    if (scatters(args, policy.thread_per_word.short_run) || (equal_runs && within)) return policy.blocks.passing;
  }
  const bool runs = args.method == Method::runs && within;
  if (runs) return hints.multiprocessors * (args.unpack != 0 ? policy.blocks.unpacked_runs : policy.blocks.all);
  return hints.multiprocessors * (list ? policy.blocks.list : policy.blocks.all);
}

/// The most blocks worth launching: mostly those that are resident at once, each with its share of the tiles.
int most_blocks(const KernelArgs& args, const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  const bool list = args.shape.kind == ShapeKind::list;
  if (args.method == Method::entries) return policy.entries.most_blocks;
  if (!hints.packed_is_host) return most_blocks_on_gpus(args, hints);
  if (args.shape.kind == ShapeKind::general) return hints.multiprocessors * policy.host.general_blocks;
  const int resident = hints.multiprocessors * (list ? policy.blocks.list : policy.blocks.all);
  const int plain = args.method == Method::words
                        ? policy.host.bytes_in_flight / (block_threads * words_per_thread * args.word)
                        : policy.host.bytes_in_flight / (block_threads * 16);
  const int factor = args.method == Method::runs ? policy.host.runs_factor : list ? policy.host.list_factor : 1;
  return std::min(plain * factor, resident);
}

/// Whether there are kernels in which each thread moves one word.
bool suits_single(const KernelArgs& args) {
  const bool searched = args.shape.kind == ShapeKind::list && args.shape.run == 0;
  return args.method == Method::words && args.narrow != 0 && args.word >= 4 && !searched;
}

void set_grid(KernelArgs& args, const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  const std::int64_t bytes = args.end - args.begin;
  const bool within = !hints.packed_is_host && !hints.packed_is_peer;
  const bool short_steps =
      args.method == Method::runs && args.unpack != 0 && args.shape.kind == ShapeKind::strided && within;
  args.block = short_steps ? policy.blocks.unpacked_runs_threads : block_threads;
  std::int64_t items = 0, tile = 0, single = 0;
  switch (args.method) {
    case Method::words:
      items = ceil_divide(bytes, args.word);
      single = policy.single_block.words;
      tile = std::int64_t{block_threads} * words_per_thread;
      break;
    case Method::gather:
      items = ceil_divide(bytes, 16) + 1;
      single = policy.single_block.gather_words;
      tile = block_threads;
      break;
    case Method::runs:
      items = ceil_divide(bytes, args.shape.run);
      single = block_threads;
      tile = args.block;
      break;
    case Method::entries:
      items = (args.last_entry - args.first_entry) << args.entry_threads_log;
      single = policy.single_block.entry_threads;
      tile = std::int64_t{block_threads} * entries_per_thread;
      break;
  }
  if (items <= single) {
    // At least 32 threads, which also move the up to 2 * 15 bytes of ragged ends.
    args.block = static_cast<std::int32_t>(std::max<std::int64_t>(ceil_divide(items, 32) * 32, 32));
    args.grid = 1;
    args.single = suits_single(args) ? 1 : 0;
    return;
  }
  args.grid = static_cast<std::int32_t>(std::min<std::int64_t>(ceil_divide(items, tile), most_blocks(args, hints)));
}

void set_single(KernelArgs& args, int threads) {
  args.single = 1;
  args.block = threads;
  args.grid = static_cast<std::int32_t>(ceil_divide(ceil_divide(args.end - args.begin, args.word), threads));
}

/// Adapts a launch within this GPU's memory if the message is long, or exceeds the caches.
void set_within(KernelArgs& args, const LaunchPolicy& policy) {
  const std::int64_t bytes = args.end - args.begin;
  const bool beyond_cache = bytes >= policy.caches.beyond_bytes;
  args.flag_behind = beyond_cache || (args.grid > 1 && bytes >= policy.flag_behind_bytes) ? 1 : 0;
  const bool packs_list = args.shape.kind == ShapeKind::list && args.unpack == 0;
  if (!beyond_cache || packs_list || !suits_single(args)) return;
  set_single(args, args.unpack == 0 && typical_run(args.shape) < policy.thread_per_word.short_run
                       ? policy.thread_per_word.short_run_threads
                       : policy.thread_per_word.threads);
}

/// Decides which data in GPU memory are not to be kept in the caches.
void set_streaming(KernelArgs& args, const LaunchPolicy& policy) {
  const std::int64_t bytes = args.end - args.begin;
  const bool list = args.shape.kind == ShapeKind::list;
  if (bytes < policy.caches.streaming_bytes) return;
  if (args.unpack != 0) {
    const bool all = bytes >= policy.caches.all_streaming_bytes;
    args.streaming_loads = all && !list ? 1 : 0;
    args.streaming_stores = all && list ? 0 : 1;
  } else {
    const bool stays =
        list && bytes >= policy.caches.beyond_bytes && typical_run(args.shape) < policy.thread_per_word.short_run;
    args.streaming_loads = args.streaming_stores = stays ? 0 : 1;
  }
}

// --- transfers ------------------------------------------------------------------------------------------------------

/// Whether a thread moves a run: equal short ones on both sides, of words that would be too narrow.
bool transfers_runs(const Shape& from, const Shape& to) {
  if (from.kind != to.kind || from.run != to.run || to.run < shortest_lane_run) return false;
  return to.run <= (to.kind == ShapeKind::strided ? longest_lane_run : longest_list_run) &&
         (to.kind == ShapeKind::strided || to.kind == ShapeKind::list);
}

/// Whether there is a kernel for the pair of maps; otherwise it takes the one for any maps.
bool has_own_transfer(const TransferArgs& args) {
  const Shape &from = args.from.shape, &to = args.to.shape;
  const bool strided = from.kind == ShapeKind::strided && to.kind == ShapeKind::strided;
  const int ndims = std::max(from.ndims, to.ndims);
  switch (args.to.method) {
    case Method::words:
      return strided || (args.alike != 0 && to.kind == ShapeKind::list);
    case Method::gather:
      return (strided && ndims <= transfer_dims) || (args.alike != 0 && to.kind == ShapeKind::list && to.run == 0);
    default:
      return true;
  }
}

void choose_transfer_method(TransferArgs& args) {
  KernelArgs& to = args.to;
  const std::int32_t word = word_of(reinterpret_cast<Address>(to.user) | reinterpret_cast<Address>(args.from.user) |
                                    static_cast<Address>(to.shape.align | args.from.shape.align));
  const bool bytes_fit = fits_narrow(args.from, 1) && fits_narrow(to, 1);
  to.word = word;
  if (word >= 4)
    to.method = Method::words;
  else if (bytes_fit && transfers_runs(args.from.shape, to.shape))
    to.method = Method::runs;
  else
    to.method = Method::gather;
  const bool fit = to.method == Method::words ? fits_narrow(args.from, word) && fits_narrow(to, word) : bytes_fit;
  if (to.method != Method::words) to.word = 16;
  to.narrow = fit && has_own_transfer(args) ? 1 : 0;
}

}  // namespace

std::int64_t typical_run(const Shape& shape) {
  switch (shape.kind) {
    case ShapeKind::contiguous:
      return shape.total;
    case ShapeKind::strided:
      return shape.run;
    case ShapeKind::list:
      return shape.run > 0 ? shape.run : shape.list_size / std::max<std::int64_t>(shape.list_count, 1);
    default:
      return shape.align;
  }
}

KernelArgs plan(const Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin, std::int64_t end,
                const PlanHints& hints) {
  const LaunchPolicy& policy = *hints.policy;
  KernelArgs args;
  args.shape = shape;
  args.unpack = unpack ? 1 : 0;
  args.user = static_cast<char*>(user);
  args.packed = static_cast<char*>(packed);
  args.begin = begin;
  args.end = end;
  if (shape.kind == ShapeKind::contiguous) rebase_contiguous(args);
  choose_method(args, hints);
  set_divisors(args);
  set_grid(args, hints);
  if (!hints.packed_is_host && !hints.packed_is_peer) set_within(args, policy);
  args.consecutive_rounds = hints.packed_is_host ? policy.host.list_rounds : policy.list_rounds;
  if (!hints.packed_is_host) set_streaming(args, policy);
  return args;
}

bool alike_forms(const Shape& from, const Shape& to) {
  if (from.kind != to.kind || from.ndims != to.ndims || from.run != to.run) return false;
  if (from.list_count != to.list_count || from.list_size != to.list_size) return false;
  if (from.list_displs != to.list_displs || from.list_prefix != to.list_prefix) return false;
  if (from.kind == ShapeKind::general && (from.extent != to.extent || from.root != to.root)) return false;
  for (int d = 0; d < to.ndims; ++d) {
    if (from.dims[d].stride != to.dims[d].stride) return false;
    if (d > 0 && from.dims[d].count != to.dims[d].count) return false;  // nothing depends on how many come outermost
  }
  return true;
}

TransferArgs plan_transfer(const PlanSide& from, const PlanSide& to, bool alike, std::int64_t bytes,
                           const PlanHints& hints) {
  TransferArgs args;
  args.alike = alike ? 1 : 0;
  for (const bool sender : {true, false}) {
    KernelArgs& side = sender ? args.from : args.to;
    side.shape = sender ? from.shape : to.shape;
    side.user = static_cast<char*>(sender ? from.user : to.user);
    side.end = bytes;
  }
  choose_transfer_method(args);
  args.from.method = args.to.method;
  args.from.word = args.to.word;
  args.from.narrow = args.to.narrow;
  set_divisors(args.from);
  set_divisors(args.to);
  set_grid(args.to, hints);
  args.to.consecutive_rounds = hints.policy->list_rounds;
  return args;
}

KernelArgs plan_bytes(const Shape& shape, bool narrow) {
  KernelArgs args;
  args.shape = shape;
  args.end = shape.total;
  args.method = Method::gather;
  args.word = piece_bytes;
  args.narrow = narrow ? 1 : 0;
  set_divisors(args);
  return args;
}

// --- batches --------------------------------------------------------------------------------------------------------

ShapeKind batch_kind(const Shape& shape) {
  return shape.kind == ShapeKind::list || shape.ndims > batch_dims ? ShapeKind::general : shape.kind;
}

namespace {

Shape batch_shape(const Shape& shape) {
  Shape taken = shape;
  taken.kind = batch_kind(shape);
  if (taken.kind != ShapeKind::strided) taken.ndims = 0;
  return taken;
}

}  // namespace

bool suits_batch(const Shape& shape, std::int64_t begin, std::int64_t end, const LaunchPolicy& policy) {
  if (end > narrow_limit) return false;
  return batch_kind(shape) != ShapeKind::general || end - begin <= policy.most_general_batch_bytes;
}

namespace {

/// The widest word for Method::words; less than 4: there is none.
std::int32_t batch_word(const PlanSide& from, const PlanSide& to) {
  Address bits = 0;
  for (const PlanSide* side : {&from, &to}) {
    const auto user = reinterpret_cast<Address>(side->user);
    const bool contiguous = side->shape.kind == ShapeKind::contiguous;
    bits |= user + (contiguous ? static_cast<Address>(side->shape.offset) : 0);
    if (!contiguous) bits |= static_cast<Address>(side->shape.align);
  }
  return word_of(bits);
}

bool is_traversed(const PlanSide& from, const PlanSide& to) {
  return batch_kind(from.shape) == ShapeKind::general || batch_kind(to.shape) == ShapeKind::general;
}

}  // namespace

int resident_blocks_for(const PlanSide& from, const PlanSide& to, std::int64_t bytes, const LaunchPolicy& policy) {
  const LaunchPolicy::Persistent& persistent = policy.persistent;
  const std::int32_t word = batch_word(from, to);
  if (word < 4) return bytes <= persistent.most_pieces * piece_bytes ? 1 : 0;
  const bool traversed = is_traversed(from, to);
  if (bytes <= (traversed ? persistent.most_traversed_words : persistent.most_words) * word) return 1;
  const std::int64_t together = traversed ? persistent.most_traversed_words_together : persistent.most_words_together;
  return bytes <= std::min(together * word, persistent.most_bytes) ? resident_blocks : 0;
}

TransferArgs plan_batch_job(const PlanSide& from, const PlanSide& to, std::int64_t begin, std::int64_t end,
                            const PlanHints& hints) {
  TransferArgs args;
  for (const bool sender : {true, false}) {
    KernelArgs& side = sender ? args.from : args.to;
    const PlanSide& given = sender ? from : to;
    side.shape = batch_shape(given.shape);
    side.user = static_cast<char*>(given.user);
    side.begin = begin;
    side.end = end;
  }
  // A few pieces take as long as many words: a thread waits for one run of a piece after the other.
  const std::int32_t word = batch_word(from, to);
  const bool by_words = word >= 4 || (end - begin <= hints.policy->words.narrow_bytes && !is_traversed(from, to));
  for (KernelArgs* side : {&args.from, &args.to}) {
    side->method = by_words ? Method::words : Method::gather;
    side->word = by_words ? word : 16;
    set_divisors(*side);
  }
  KernelArgs& job = args.to;
  const std::int64_t tile = std::int64_t{block_threads} * (by_words ? words_per_thread : 1) * job.word;
  const KernelArgs& form = args.to.shape.kind == ShapeKind::contiguous ? args.from : args.to;
  job.grid =
      static_cast<std::int32_t>(std::min<std::int64_t>(ceil_divide(end - begin, tile), most_blocks(form, hints)));
  job.block = block_threads;
  return args;
}

}  // namespace gpudt::device
