#include "interpose/collectives/board_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "interpose/collectives/reductions.hpp"
#include "interpose/support/log.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
namespace {

using peer::Block;
using peer::Contribution;

/// The value of Contribution::operation for an exchange; reductions have their operator there.
constexpr std::uint32_t exchange_operation = ~std::uint32_t{0};

/// Maximum number of layout slots that a call takes: messages need some, too.
constexpr std::size_t most_published = 4;

/// For blocks of at least this length the launch is a small part of the time.
constexpr std::int64_t long_block = 4 << 20;

/// The shortest block given to all that is shared: its bytes leave the root's GPU once instead of once for each GPU
/// that receives. With three H200s, 136 us become 73 for 16 MiB; for this length some 0.7 us are saved, by calculation.
constexpr std::int64_t least_shared = 128 << 10;

/// Such blocks begin at multiples of this number of bytes, so that they are copied in words of 16 bytes.
constexpr std::uint64_t shared_alignment = 16;
static_assert(slice_multiple % shared_alignment == 0);  // so do the parts

/// The next block after `at` that is for or from `rank`, or the end.
const Block* next_of(const Block* at, const Block* end, std::size_t rank) {
  return std::find_if(at, end, [rank](const Block& block) { return block.rank == static_cast<std::int64_t>(rank); });
}

}  // namespace

/// False unless all blocks are in one allocation that others can map, and there is room for their layouts.
bool BoardExchange::describe(const std::vector<BlockMessage>& blocks, std::vector<Block>& entries, Half& half) {
  if (blocks.size() > peer::most_blocks) return false;
  entries.reserve(blocks.size());
  device::Region memory;
  std::uint64_t begin = ~std::uint64_t{0}, end = 0;
  for (const BlockMessage& block : blocks) {
    DeviceBuffer buffer;
    memory = block.located ? *block.located : memory_of(block.buffer, block.type, memory);
    if (!resolve_layout(block.buffer, block.count, block.type, buffer, memory) || buffer.division) return false;
    if (entries.empty() && !find_memory(buffer, half)) return false;
    if (half.memory.exported.pieces == 0 && !peer::holds(half.memory.exported, buffer)) return false;
    const datatype::Span span = buffer.info->layout().span(buffer.count);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.buffer);
    begin = std::min<std::uint64_t>(begin, address + static_cast<std::uint64_t>(span.begin));
    end = std::max<std::uint64_t>(end, address + static_cast<std::uint64_t>(span.end));
    half.memory.ordinal = buffer.ordinal;
    Block& entry = entries.emplace_back();
    entry.rank = block.rank;
    entry.bytes = buffer.bytes();
    entry.count = buffer.count;
    if (half.copied)
      half.copies.push_back({buffer});
    else if (!describe(buffer, entry))
      return false;
    wait_until([&] { return buffer.after.reached(); }, for_others);
  }
  if (half.memory.exported.pieces != 0 && !find_pieces(begin, end, half)) return false;
  return !half.copied || place_copies(entries, half);
}

/// False if it cannot be exported.
bool BoardExchange::find_memory(const DeviceBuffer& first, Half& half) const {
  half.memory.first_byte = static_cast<const char*>(first.buffer) + first.info->layout().true_lb();
  const auto exported_for = [&](device::Importers by) {
    return device::export_memory(first.ordinal, half.memory.first_byte, half.memory.exported, by);
  };
  if (exported_for(group_->importers())) return true;
  half.copied = true;
  return exported_for(device::no_importers);
}

/// Memory in pieces may have grown since it was exported, and some of the pieces may be other ones. False if not all
/// from `begin` to `end` can be mapped.
bool BoardExchange::find_pieces(std::uint64_t begin, std::uint64_t end, Half& half) const {
  device::Exported& memory = half.memory.exported;
  return device::export_memory(half.memory.ordinal, reinterpret_cast<const void*>(begin), memory,
                               half.copied ? device::no_importers : group_->importers(), end - begin) &&
         begin >= memory.base && end <= memory.base + memory.size;
}

/// Lets the entries describe packed copies in place of the blocks. False if copies cannot be exported either.
bool BoardExchange::place_copies(std::vector<Block>& entries, Half& half) const {
  constexpr std::int64_t alignment = 16;
  std::int64_t bytes = 0;
  for (const Block& entry : entries) bytes += (entry.bytes + alignment - 1) / alignment * alignment;
  device::ExportedStaging taken =
      device::acquire_exported(half.memory.ordinal, static_cast<std::size_t>(bytes), group_->importers());
  if (!taken.exported) return false;
  half.memory.exported = *taken.exported;
  half.staging = std::move(taken.staging);
  auto* packed = static_cast<std::byte*>(half.staging.data());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].address = reinterpret_cast<std::uintptr_t>(packed);
    half.copies[i].packed = packed;
    packed += (entries[i].bytes + alignment - 1) / alignment * alignment;
  }
  return true;
}

bool BoardExchange::describe(const DeviceBuffer& buffer, Block& entry) {
  entry.address = reinterpret_cast<std::uintptr_t>(buffer.buffer);
  const datatype::Layout& layout = buffer.info->layout();
  if (!layout.is_contiguous(buffer.count)) return name(buffer.info->layout_ref(), entry);
  entry.address += static_cast<std::uint64_t>(layout.true_lb());
  return true;
}

/// Layouts go with the call as long as there is room, others into slots of the segment, once they have been used so
/// often that it pays.
bool BoardExchange::name(const datatype::LayoutRef& layout, Block& entry) {
  std::vector<NamedLayout>& named = made_->named;
  std::vector<std::byte>& layouts = made_->blocks.layouts;
  const auto known =
      std::find_if(named.begin(), named.end(), [&](const NamedLayout& each) { return each.layout == layout; });
  if (known != named.end()) {
    entry.layout = known->name;
    entry.layout_at = known->at;
    return true;
  }
  constexpr std::size_t alignment = alignof(std::max_align_t);
  const std::size_t bytes = layout->bytes();
  const LockGuard lock(peer::world->mutex);
  if (layouts.size() + bytes <= peer::block_layouts) {
    std::span<const std::byte> image;
    entry.layout = peer::world->layouts.name_short(layout, image);
    entry.layout_at = static_cast<std::int32_t>(layouts.size());
    layouts.insert(layouts.end(), image.begin(), image.end());
    layouts.resize((layouts.size() + alignment - 1) / alignment * alignment);
  } else {
    if (published_.size() == most_published) return false;
    const std::size_t effort = std::max(peer::published_by_message, static_cast<std::size_t>(entry.bytes));
    entry.layout = peer::world->layouts.name_long(*peer::world->own, layout, effort, published_.emplace_back());
    if (entry.layout.number == 0) return false;
  }
  named.push_back({layout, entry.layout, entry.layout_at});
  return true;
}

/// Whether messages, which pack first, are the better way to another process: a long block of short runs takes several
/// times its bytes over the link.
bool BoardExchange::better_packed(const Block& block) const {
  if (block.layout.bytes == 0 || block.bytes < long_block || block.rank == group_->rank()) return false;
  const datatype::LayoutRef layout = layout_of(static_cast<std::size_t>(group_->rank()), block);
  return device::better_fetched_packed(ordinal_, *layout, block.count);
}

/// Whether GPUs may do exchanges at all.
bool BoardExchange::takes_part() const {
  const ForcedProtocol forced = collectives_forced();
  return (!forced || forced == Protocol::peer) && active.load(std::memory_order_acquire) && !check_wanted;
}

bool BoardExchange::recall(const BlockMessages& blocks, std::int64_t least) noexcept try {
  plan_ = takes_part() ? group_->plans().find(blocks, least, group_->importers()) : nullptr;
  if (!plan_) return false;
  for (const auto* const memory : {&plan_->sent, &plan_->received}) {
    if (memory->ordinal < 0) continue;
    const device::StreamMark after = device::mark_default_stream(memory->ordinal);
    wait_until([&] { return after.reached(); }, for_others);
    ordinal_ = memory->ordinal;
  }
  mine_ = plan_->contribution;
  mine_.shares = plan_->shares() ? 1 : 0;
  blocks_ = {plan_, &plan_->blocks};
  return true;
} catch (const std::exception&) {  // prepare() finds out what is wrong
  return false;
}

bool BoardExchange::prepare(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight) noexcept {
  mine_.operation = exchange_operation;
  mine_.bytes = weight;
  set_fit(fit);
  try {
    Half &given = sent_, &taken = received_;
    plan_ = made_ = std::make_shared<ExchangePlan>();
    blocks_ = {made_, &made_->blocks};
    made_->types_freed = datatype::types_freed();
    made_->named.reserve(blocks.given.size() + blocks.taken.size());
    const bool described = listed && takes_part() && describe(blocks.given, made_->blocks.given, given) &&
                           describe(blocks.taken, made_->blocks.taken, taken);
    if (described) copy_given();
    const auto &from = given.memory, &to = taken.memory;
    const bool apart = from.ordinal >= 0 && to.ordinal >= 0 && from.ordinal != to.ordinal;
    ordinal_ = std::max(from.ordinal, to.ordinal);
    const auto packed = [&](const Block& block) { return better_packed(block); };
    const bool by_messages = fit && std::any_of(made_->blocks.given.begin(), made_->blocks.given.end(), packed);
    mine_.on_gpu = described && !apart && !by_messages ? 1 : 0;
    mine_.given = static_cast<std::int32_t>(made_->blocks.given.size());
    mine_.taken = static_cast<std::int32_t>(made_->blocks.taken.size());
    mine_.from = from.exported;
    mine_.to = to.exported;
    std::ranges::copy(device::turn_of(from.ordinal >= 0 ? from.exported : to.exported), mine_.gpu);
  } catch (const std::exception& error) {  // the others wait for what this process publishes
    mine_.on_gpu = 0;
    if (tracing()) log_trace(std::string(call_) + ": not by GPUs: " + error.what());
  }
  return mine_.on_gpu == 1;
}

/// Not where copies of the blocks were published, or layouts in slots, which other calls take; nor memory in pieces, of
/// which some may be replaced; nor blocks of types without data, whose handles nobody watches.
void BoardExchange::remember(BlockMessages listed, std::int64_t least) noexcept try {
  static std::atomic<std::uint64_t> last_content{0};
  const auto lasts = [](const Half& half) { return !half.copied && half.memory.exported.pieces == 0; };
  const auto all_there = [](const std::vector<BlockMessage>& some, const std::vector<Block>& entries) {
    return std::count_if(some.begin(), some.end(), [](const BlockMessage& each) { return each.count != 0; }) ==
           std::ssize(entries);
  };
  if (mine_.on_gpu == 0 || !lasts(sent_) || !lasts(received_) || !published_.empty() ||
      !all_there(listed.given, made_->blocks.given) || !all_there(listed.taken, made_->blocks.taken))
    return;
  made_->listed = std::move(listed);
  made_->least = least;
  for (const Block& block : made_->blocks.taken) made_->taken_bytes += block.bytes;
  made_->sent = sent_.memory;
  made_->received = received_.memory;
  mine_.content = last_content.fetch_add(1, std::memory_order_relaxed) + 1;
  made_->contribution = mine_;
  group_->plans().add(made_);
} catch (const std::bad_alloc&) {  // the next call prepares again
}

/// Others may read the copies as soon as they know of them.
void BoardExchange::copy_given() {
  for (Copy& copy : sent_.copies) copy.start(device::Direction::pack);
  for (Copy& copy : sent_.copies) wait_until([&] { return copy.transfer.done(); }, for_others);
}

void BoardExchange::start_delivery() {
  for (Copy& copy : received_.copies) copy.start(device::Direction::unpack);
}

bool BoardExchange::delivered() {
  return std::all_of(received_.copies.begin(), received_.copies.end(), [](Copy& copy) { return copy.transfer.done(); });
}

void BoardExchange::report() const {
  report_peer(PeerEvent::collective);
  if (tracing())
    log_trace(std::string(call_) + ": by kernels that fetch " + std::to_string(mine_.given) + " messages to, and " +
              std::to_string(mine_.taken) + " from, processes of the node" +
              (moves_ && moves_->share.bytes > 0 ? "; this GPU fetches a part of the block and stores it to all" : ""));
  if (!buffers_followed) return;
  const auto here = static_cast<std::size_t>(group_->rank());
  for (const auto* const side : {&plan_->blocks.given, &plan_->blocks.taken})
    for (const Block& block : *side)
      report_buffer(call_, {went_by_kernels}, layout_of(here, block)->shape(block.count).kind, block.bytes,
                    ReportClock::now() - began_);
}

bool BoardExchange::all_agree() const {
  return std::all_of(all_.begin(), all_.end(),
                     [](const Contribution& each) { return each.operation == exchange_operation && each.on_gpu == 1; });
}

bool BoardExchange::all_want_messages() const {
  const auto fits = [](const Contribution& each) { return each.operation == exchange_operation && each.fit == 1; };
  const auto pays = [](const Contribution& each) { return each.bytes > 0; };
  return std::all_of(all_.begin(), all_.end(), fits) && std::any_of(all_.begin(), all_.end(), pays);
}

bool BoardExchange::map() {
  const auto still_right = [&](const Moves& before) {
    return before.hold_for(all_) && before.shared == (before.one_to_all && all_share()) && reach_again(before);
  };
  if (std::shared_ptr<const Moves> before = plan_->moves(); before && still_right(*before)) {
    if (before->may_prepare()) {
      const auto again = std::make_shared<Moves>(*before);
      again->prepare(ordinal_);
      plan_->keep(again);
      before = again;
    }
    needed_ = moves_ = std::move(before);
    return true;
  }
  found_ = std::make_shared<Moves>();
  needed_ = moves_ = found_;
  found_->all = all_;
  found_->moves.reserve(static_cast<std::size_t>(mine_.taken));
  found_->from.assign(all_.size(), nullptr);
  found_->to.assign(all_.size(), nullptr);
  const std::optional<std::size_t> root = shared_root();
  found_->one_to_all = root.has_value();
  found_->shared = root && all_share();
  if (found_->shared) {
    plan_->set_shares(false);  // next time, if this fails
    if (!find_share(*root)) return false;
    plan_->set_shares(true);
  } else {
    for (std::size_t rank = 0; rank < all_.size(); ++rank)
      if (serves(rank) && !match(rank)) return false;
  }
  plan_->keep(moves_);
  return true;
}

/// Whether blocks may be shared in this call, for which memory of all receivers is mapped: not in the first of its
/// kind, since opening that takes longer than what is saved, nor where it was not reached.
bool BoardExchange::all_share() const {
  return std::all_of(all_.begin(), all_.end(), [](const Contribution& each) { return each.shares == 1; });
}

/// The only process that gives anything, if it gives the same long contiguous block to others, at least half of them on
/// several GPUs beside its own. All leaders get the same answer.
std::optional<std::size_t> BoardExchange::shared_root() const {
  const auto gives = [](const Contribution& each) { return each.given > 0; };
  const auto found = std::find_if(all_.begin(), all_.end(), gives);
  if (found == all_.end() || std::any_of(found + 1, all_.end(), gives)) return std::nullopt;
  const auto root = static_cast<std::size_t>(found - all_.begin());
  if (found->taken != 0) return std::nullopt;
  const Block* const first = blocks_of(root).given;
  const bool same = std::all_of(first, first + found->given, [&](const Block& each) {
    return each.address == first->address && each.bytes == first->bytes && each.layout.bytes == 0;
  });
  if (!same || first->bytes < least_shared || first->address % shared_alignment != 0) return std::nullopt;
  std::int32_t receivers = 0, near_root = 0;
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    if (all_[rank].taken == 0) continue;
    if (!takes_only_from(rank, root)) return std::nullopt;
    ++receivers;
    if (std::ranges::equal(all_[rank].to.gpu, all_[root].from.gpu)) ++near_root;  // no link lies between
  }
  const bool divides = receivers == found->given && 2 * near_root <= receivers && sharing_leaders(root).size() >= 2;
  return divides ? std::optional(root) : std::nullopt;
}

/// Whether `receiver` takes the block that `root` gives to all, and nothing else.
bool BoardExchange::takes_only_from(std::size_t receiver, std::size_t root) const {
  const Block& taken = *blocks_of(receiver).taken;
  const Block *const first = blocks_of(root).given, *const end = first + all_[root].given;
  return all_[receiver].taken == 1 && taken.rank == static_cast<std::int64_t>(root) && taken.bytes == first->bytes &&
         taken.layout.bytes == 0 && taken.address % shared_alignment == 0 && next_of(first, end, receiver) != end;
}

/// The leaders of the GPUs that receive, except for the root's, whose link is busy with giving.
std::vector<int> BoardExchange::sharing_leaders(std::size_t root) const {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    const int leader = leader_of(rank);
    if (all_[rank].taken != 0 && leader != leader_of(root) &&
        std::find(leaders.begin(), leaders.end(), leader) == leaders.end())
      leaders.push_back(leader);
  }
  return leaders;
}

/// Finds this leader's part of the block, if it has one. False if memory is not reached.
bool BoardExchange::find_share(std::size_t root) {
  const std::vector<int> leaders = sharing_leaders(root);
  const auto self = std::find(leaders.begin(), leaders.end(), group_->rank());
  if (self == leaders.end()) return true;
  const Block& given = *blocks_of(root).given;
  const auto slices = static_cast<std::int64_t>(leaders.size()), slice = self - leaders.begin();
  const std::int64_t begin = slice_begin(given.bytes, slice, slices), end = slice_begin(given.bytes, slice + 1, slices);
  const auto part_at = [begin](void* mapped, const Block& block, const device::Exported& memory) {
    return static_cast<char*>(mapped) + (block.address - memory.base) + begin;
  };
  if (!reach(root, all_[root].from, all_[root].from.base, found_->from[root])) return false;
  found_->share = {part_at(found_->from[root], given, all_[root].from), {}, end - begin};
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    if (all_[rank].taken == 0) continue;
    if (!reach(rank, all_[rank].to, all_[rank].to.base, found_->to[rank])) return false;
    found_->share.to.push_back(part_at(found_->to[rank], *blocks_of(rank).taken, all_[rank].to));
  }
  return true;
}

/// Whether all memory of these moves is mapped where it was.
bool BoardExchange::reach_again(const Moves& before) {
  for (std::size_t rank = 0; rank < all_.size(); ++rank)
    for (const auto& [memory, at] :
         {std::pair(&all_[rank].from, before.from[rank]), {&all_[rank].to, before.to[rank]}}) {
      void* mapped = nullptr;
      if (at != nullptr && (!reach(rank, *memory, memory->base, mapped) || mapped != at)) return false;
    }
  return true;
}

/// Finds where each block that `receiver` takes is to be fetched from. False if one is not reached, or if lengths sent
/// and received differ, which messages report.
bool BoardExchange::match(std::size_t receiver) {
  const Contribution& its = all_[receiver];
  if (its.taken != 0 && !reach(receiver, its.to, its.to.base, found_->to[receiver])) return false;
  const Block* const taken_end = blocks_of(receiver).taken + its.taken;
  // Each leader begins with another giver, so that not all fetch from one GPU at a time.
  for (std::size_t turn = 1; turn <= all_.size(); ++turn) {
    const std::size_t giver = (receiver + turn) % all_.size();
    const Block* const given_end = blocks_of(giver).given + all_[giver].given;
    const Block* taken = next_of(blocks_of(receiver).taken, taken_end, giver);
    const Block* given = next_of(blocks_of(giver).given, given_end, receiver);
    for (; taken != taken_end && given != given_end;
         taken = next_of(taken + 1, taken_end, giver), given = next_of(given + 1, given_end, receiver))
      if (!add(giver, *given, receiver, *taken)) return false;
    if (taken != taken_end || given != given_end) return false;
  }
  return true;
}

bool BoardExchange::add(std::size_t giver, const Block& given, std::size_t receiver, const Block& taken) {
  if (taken.bytes != given.bytes) return false;
  const device::Exported &from = all_[giver].from, &to = all_[receiver].to;
  void*& mapped_from = found_->from[giver];
  if (mapped_from == nullptr && !reach(giver, from, from.base, mapped_from)) return false;
  const datatype::LayoutRef from_layout = layout_of(giver, given), to_layout = layout_of(receiver, taken);
  if (!from_layout || !to_layout) return false;
  const auto side = [&](const datatype::LayoutRef& layout, const Block& block, void* mapped, std::uint64_t base) {
    found_->layouts.push_back(layout);
    const std::int64_t count = block.layout.bytes == 0 ? block.bytes : block.count;
    return device::Side{layout.get(), count, static_cast<char*>(mapped) + (block.address - base)};
  };
  const bool contiguous = given.layout.bytes == 0 && taken.layout.bytes == 0;
  found_->moves.push_back({side(from_layout, given, mapped_from, from.base),
                           side(to_layout, taken, found_->to[receiver], to.base), taken.bytes, contiguous,
                           serves(giver)});
  return true;
}

/// Null if what the other process has published is damaged, or gone.
datatype::LayoutRef BoardExchange::layout_of(std::size_t rank, const Block& block) const {
  if (block.layout.bytes == 0) return datatype::type_info(MPI_BYTE)->layout_ref();
  if (static_cast<int>(rank) == group_->rank()) {
    const std::vector<NamedLayout>& all = plan_->named;
    const auto named = std::find_if(all.begin(), all.end(),
                                    [&](const NamedLayout& each) { return each.name.number == block.layout.number; });
    return named == all.end() ? nullptr : named->layout;
  }
  const std::span<const std::byte> beside = layouts_of(rank);
  const auto at = static_cast<std::size_t>(block.layout_at);
  if (at > beside.size()) return nullptr;
  const LockGuard lock(peer::world->mutex);
  return peer::world->layouts.find(group_->segment(rank), block.layout, beside.subspan(at));
}

/// Whether a block stays on its GPU and is so long that it is better moved beside what comes over the link.
bool BoardExchange::beside(const Move& move) const {
  return move.own && moves_->moves.size() > 1 && move.bytes > device::Gathering::long_bytes;
}

/// A share by one kernel. Otherwise one kernel for as many contiguous blocks as it takes, and one for all others. A
/// single block, or a long one, moves as a message does: by the persistent kernel, which saves the launch, by one of
/// its own, or by the copy engine.
void BoardExchange::start(std::vector<device::Transfer>& kernels) {
  std::vector<device::BlockCopy> together;
  const auto launch = [&] {
    if (!together.empty()) kernels.push_back(device::copy_blocks(ordinal_, together));
    together.clear();
  };
  if (const Share& share = moves_->share; share.bytes > 0) {
    kernels.push_back(device::copy_to_all(ordinal_, share.from, share.to, share.bytes));
    return;
  }
  kernels.reserve(moves_->moves.size());
  if (moves_->prepared && device::start(*moves_->prepared, kernels)) return;
  const device::Gathering gathering(moves_->moves.size() == 1 ? 0 : device::Gathering::long_bytes);
  for (const Move& move : moves_->moves) {
    if (move.contiguous && move.from.user == move.to.user) continue;
    if (!move.contiguous || moves_->moves.size() == 1 || move.bytes >= long_block)
      kernels.push_back(device::transfer(ordinal_, move.from, move.to, 0, move.bytes, {}, /*within=*/beside(move)));
    else
      together.push_back({move.from.user, move.to.user, move.bytes});
    if (together.size() == device::most_block_copies) launch();
  }
  launch();
}

}  // namespace gpudt::interpose
