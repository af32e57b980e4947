#include "interpose/collectives/board_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "interpose/support/log.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

using peer::Block;
using peer::Contribution;

/// The value of Contribution::operation for an exchange; reductions have their operator there.
constexpr std::uint32_t exchange_operation = ~std::uint32_t{0};

/// For blocks of at least this length the launch is a small part of the time.
constexpr std::int64_t long_block = 4 << 20;

/// The next block after `at` that is for or from `rank`, or the end.
const Block* next_of(const Block* at, const Block* end, std::size_t rank) {
  return std::find_if(at, end, [rank](const Block& block) { return block.rank == static_cast<std::int64_t>(rank); });
}

}  // namespace

/// False unless each block is in one piece, all of them in one allocation that others can map.
bool BoardExchange::describe(const std::vector<BlockMessage>& blocks, std::vector<Block>& entries, Half& half) {
  if (blocks.size() > peer::most_blocks) return false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    DeviceBuffer buffer;
    const BlockMessage& block = blocks[i];
    if (!resolve_layout(block.buffer, block.count, block.type, buffer, block.located) || buffer.division) return false;
    const datatype::Shape shape = buffer.info->layout().shape(buffer.count);
    const std::uint64_t address =
        reinterpret_cast<std::uintptr_t>(buffer.buffer) + static_cast<std::uint64_t>(shape.offset);
    if (shape.kind != datatype::ShapeKind::contiguous) return false;
    if (i == 0 && !device::export_memory(buffer.ordinal, reinterpret_cast<void*>(address), half.memory)) return false;
    const std::uint64_t begin = address - half.memory.base;
    if (address < half.memory.base || begin + static_cast<std::uint64_t>(buffer.bytes()) > half.memory.size)
      return false;
    half.ordinal = buffer.ordinal;
    entries.push_back({block.rank, buffer.bytes(), address});
    wait_until([&] { return buffer.after.reached(); }, for_others);
  }
  return true;
}

bool BoardExchange::prepare(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight) noexcept {
  mine_.operation = exchange_operation;
  mine_.fit = fit ? 1 : 0;
  mine_.bytes = weight;
  try {
    Half given, taken;
    const ForcedProtocol forced = collectives_forced();
    const bool described = listed && (!forced || forced == Protocol::peer) && active.load(std::memory_order_acquire) &&
                           !check_wanted && describe(blocks.given, given_, given) &&
                           describe(blocks.taken, taken_, taken);
    const bool apart = given.ordinal >= 0 && taken.ordinal >= 0 && given.ordinal != taken.ordinal;
    ordinal_ = std::max(given.ordinal, taken.ordinal);
    mine_.on_gpu = described && !apart ? 1 : 0;
    mine_.given = static_cast<std::int32_t>(given_.size());
    mine_.taken = static_cast<std::int32_t>(taken_.size());
    mine_.from = given.memory;
    mine_.to = taken.memory;
    std::memcpy(mine_.gpu, given.ordinal >= 0 ? given.memory.gpu : taken.memory.gpu, sizeof mine_.gpu);
  } catch (const std::exception& error) {  // the others wait for what this process tells
    mine_.on_gpu = 0;
    if (tracing()) log_trace(std::string(call_) + ": not by GPUs: " + error.what());
  }
  return mine_.on_gpu == 1;
}

/// Reports the blocks, which are all contiguous.
void BoardExchange::report() const {
  report_peer(PeerEvent::collective);
  if (tracing())
    log_trace(std::string(call_) + ": by kernels that fetch " + std::to_string(mine_.given) + " messages to, and " +
              std::to_string(mine_.taken) + " from, processes of the node");
  if (!report_wanted) return;
  for (const auto* const side : {&given_, &taken_})
    for (const Block& block : *side)
      report_buffer(call_, went_by_kernels, datatype::ShapeKind::contiguous, block.bytes, ReportClock::now() - began_);
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
  from_.assign(all_.size(), nullptr);
  to_.assign(all_.size(), nullptr);
  for (std::size_t rank = 0; rank < all_.size(); ++rank)
    if (serves(rank) && !match(rank)) return false;
  return true;
}

/// Finds what each block that `receiver` takes is to be fetched from. False if one is not reached, or not of the length
/// that is given: a difference is the messages' to report.
bool BoardExchange::match(std::size_t receiver) {
  const Contribution& its = all_[receiver];
  if (its.taken != 0 && !reach(receiver, its.to, its.to.base, to_[receiver])) return false;
  const Block* const taken_end = blocks_of(receiver).taken + its.taken;
  for (std::size_t giver = 0; giver < all_.size(); ++giver) {
    const Contribution& theirs = all_[giver];
    const Block* const given_end = blocks_of(giver).given + theirs.given;
    const Block* taken = next_of(blocks_of(receiver).taken, taken_end, giver);
    const Block* given = next_of(blocks_of(giver).given, given_end, receiver);
    for (; taken != taken_end && given != given_end;
         taken = next_of(taken + 1, taken_end, giver), given = next_of(given + 1, given_end, receiver)) {
      if (taken->bytes != given->bytes) return false;
      if (from_[giver] == nullptr && !reach(giver, theirs.from, theirs.from.base, from_[giver])) return false;
      moves_.push_back({static_cast<char*>(from_[giver]) + (given->address - theirs.from.base),
                        static_cast<char*>(to_[receiver]) + (taken->address - its.to.base), taken->bytes});
    }
    if (taken != taken_end || given != given_end) return false;
  }
  return true;
}

/// One kernel for as many blocks as it takes. A single block, or a long one, as messages do it: by the persistent
/// kernel, which saves the launch, by one of its own, or by the copy engine.
void BoardExchange::start(std::vector<device::Transfer>& kernels) {
  const datatype::TypeInfoRef byte = datatype::type_info(MPI_BYTE);
  std::vector<device::BlockCopy> together;
  const auto launch = [&] {
    if (!together.empty()) kernels.push_back(device::copy_blocks(ordinal_, together));
    together.clear();
  };
  kernels.reserve(moves_.size());
  for (const device::BlockCopy& move : moves_) {
    if (move.from == move.to) continue;
    if (moves_.size() == 1 || move.bytes >= long_block)
      kernels.push_back(device::transfer(ordinal_, {&byte->layout(), move.bytes, const_cast<void*>(move.from)},
                                         {&byte->layout(), move.bytes, move.to}, 0, move.bytes));
    else
      together.push_back(move);
    if (together.size() == device::most_block_copies) launch();
  }
  launch();
}

}  // namespace gpudt::interpose
