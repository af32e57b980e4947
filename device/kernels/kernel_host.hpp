// One launch of the kernels of kernel_body.hpp, transfer_body.hpp and batch_body.hpp, done serially on the host with
// the same arithmetic and the same accesses: for the simulated device, and for tests on machines without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/kernels/batch_body.hpp"

namespace gpudt::device {

/// Loads and stores of a serial run on the host; `translate` turns an address that a kernel would use into one that
/// the host may use.
template <class Translate>
struct HostMemory {
  const Translate& translate;

  template <class Word>
  Word load(Address address) const {
    Word word;
    std::memcpy(&word, translate(reinterpret_cast<const void*>(address)), sizeof word);
    return word;
  }
  template <class Word>
  void store(Address address, const Word& word) const {
    std::memcpy(translate(reinterpret_cast<const void*>(address)), &word, sizeof word);
  }
};

namespace host {

/// Packed bytes that share one search of an irregular list, as a thread block's tile does.
constexpr std::int64_t tile_units = 1024;

template <class Map>
typename Map::Tile cover(const Map& map, std::int64_t first, std::int64_t last) {
  using Index = typename Map::Index;
  if constexpr (std::is_same_v<typename Map::Tile, NoTile>)
    return map.whole();
  else
    return map.cover(static_cast<Index>(first), static_cast<Index>(last));
}

template <class Word, bool unpack, class Map, class Memory>
void run_words(const Job<Map>& job, const Memory& memory) {
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  for (std::int64_t p = job.begin; p < range.head_end; ++p) move_byte<unpack>(job, memory, p);
  for (std::int64_t first = range.first; first < range.last; first += tile_units) {
    const std::int64_t last = range.last - first < tile_units ? range.last : first + tile_units;
    const auto tile = cover(job.map, first, last - 1);
    for (std::int64_t i = first; i < last; ++i)
      move_word<Word, unpack>(job, memory, static_cast<typename Map::Index>(i), tile);
  }
  for (std::int64_t p = range.tail_begin; p < job.end; ++p) move_byte<unpack>(job, memory, p);
}

template <class Word, bool unpack, class Memory>
void run_words(const Job<EntryMap>& job, const Memory& memory) {
  for (EntryMap::Index i = job.map.first; i < job.map.last; ++i) {
    const EntryWords entry = entry_words<Word>(job, i);
    for (std::int32_t w = 0; w < entry.count; ++w) {
      const Address user = entry.user + static_cast<Address>(w) * sizeof(Word);
      const Address packed = entry.packed + static_cast<Address>(w) * sizeof(Word);
      memory.template store<Word>(unpack ? user : packed, memory.template load<Word>(unpack ? packed : user));
    }
  }
}

template <bool unpack, class Map, class Memory>
void run_gather(const Job<Map>& job, const Memory& memory, std::int64_t begin, std::int64_t end) {
  const PackedWords words = packed_words(job.packed, begin, end);
  for (std::int64_t first = 0; first < words.count; first += tile_units) {
    const std::int64_t last = words.count - first < tile_units ? words.count : first + tile_units;
    const std::int64_t low = words.position + 16 * first, high = words.position + 16 * last;
    const auto tile = cover(job.map, low > begin ? low : begin, (high < end ? high : end) - 1);
    for (std::int64_t i = first; i < last; ++i) move_packed_word<unpack>(job, memory, words, i, begin, end, tile);
  }
}

template <bool unpack, class Map, class Memory>
void run_group(const Job<Map>& job, const Memory& memory, std::int32_t first_run, int runs) {
  const int run = static_cast<int>(job.map.run_bytes), bytes = run * runs;
  const Address packed = job.packed + static_cast<Address>(first_run) * static_cast<Address>(run);
  alignas(16) std::uint32_t image[group_words] = {};
  auto* image_bytes = reinterpret_cast<std::uint8_t*>(image);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < runs; ++lane) bits |= static_cast<std::uint32_t>(run_address(job, first_run + lane));
  const int word = access_width(bits);
  const auto in_words = bytes / 16 * 16;
  if constexpr (unpack) {
    for (int i = 0; i < in_words; i += 16) {
      const Word16 value = memory.template load<Word16>(packed + static_cast<Address>(i));
      std::memcpy(image_bytes + i, &value, sizeof value);
    }
    for (int i = in_words; i < bytes; ++i)
      image_bytes[i] = memory.template load<std::uint8_t>(packed + static_cast<Address>(i));
    for (int lane = 0; lane < runs; ++lane) {
      std::uint32_t x[lane_words + 1] = {};
      run_from_image(lane, run, image, x);
      store_run(memory, run_address(job, first_run + lane), run, word, x);
    }
  } else {
    std::uint32_t x[lanes][lane_words + 1], heads[lanes + 1] = {};
    for (int lane = 0; lane < runs; ++lane) {
      load_run(memory, run_address(job, first_run + lane), run, word, x[lane]);
      heads[lane] = x[lane][0];
    }
    for (int lane = 0; lane < runs; ++lane) run_to_image(lane, run, x[lane], heads[lane + 1], image);
    for (int i = 0; i < in_words; i += 16) {
      Word16 value;
      std::memcpy(&value, image_bytes + i, sizeof value);
      memory.template store<Word16>(packed + static_cast<Address>(i), value);
    }
    for (int i = in_words; i < bytes; ++i)
      memory.template store<std::uint8_t>(packed + static_cast<Address>(i), image_bytes[i]);
  }
}

template <bool unpack, class Map, class Memory>
void run_job(const KernelArgs& args, const Job<Map>& job, const Memory& memory) {
  if constexpr (requires { &Map::place; })
    if (args.method == Method::gather) return run_gather<unpack>(job, memory, job.begin, job.end);
  if constexpr (requires { &Map::run_offset; }) {
    if (args.method == Method::runs) {
      const GroupRange groups = whole_groups(job);
      run_gather<unpack>(job, memory, job.begin, groups.head_end);
      for (std::int32_t i = groups.first * lanes; i < groups.runs_end; i += lanes)
        run_group<unpack>(job, memory, i, std::min(lanes, groups.runs_end - i));
      return run_gather<unpack>(job, memory, groups.tail_begin, job.end);
    }
  }
  visit_word(args.word, [&](auto word) { run_words<typename decltype(word)::type, unpack>(job, memory); });
}

}  // namespace host

/// Moves the bytes of one launch of `args` serially on the host, with the arithmetic and the accesses of the kernels.
/// `translate(const void*) -> void*` is applied to each address of the user's and the packed data that is accessed
/// (an access never straddles two allocations) and to the two program pointers. The flag and the counter are not
/// touched: completion is the caller's.
template <class Translate>
void run_on_host(const KernelArgs& args, const Translate& translate) {
  KernelArgs local = args;
  if (args.program.nodes) local.program.nodes = static_cast<const datatype::Node*>(translate(args.program.nodes));
  if (args.program.lookaside)
    local.program.lookaside = static_cast<const std::int64_t*>(translate(args.program.lookaside));
  const HostMemory<Translate> memory{translate};
  visit_map(local, [&](auto map) {
    const Job<typename decltype(map)::type> job(local);
    if (local.unpack)
      host::run_job<true>(local, job, memory);
    else
      host::run_job<false>(local, job, memory);
  });
}

// --- transfers ------------------------------------------------------------------------------------------------------

namespace host {

template <class Word, class Pair, class Memory>
void transfer_words(const Pair& pair, const Memory& memory, std::int64_t end) {
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t count = end / width;
  for (std::int64_t first = 0; first < count; first += tile_units) {
    const std::int64_t last = std::min(count, first + tile_units);
    const auto tile = cover(pair.map, first, last - 1);
    for (std::int64_t i = first; i < last; ++i) {
      const PairPlace place = pair.place(static_cast<typename Pair::Index>(i), tile);
      memory.template store<Word>(place.to, memory.template load<Word>(place.from));
    }
  }
  for (std::int64_t p = count * width; p < end; ++p) transfer_byte(pair, memory, p);
}

template <class Pair, class Memory>
void transfer_all(const Pair& pair, const Memory& memory, const KernelArgs& to) {
  if constexpr ((methods_of<Pair> & by_runs) != 0) {
    if (to.method == Method::runs) {
      const std::int64_t run = pair.map.run_bytes, runs = to.end / run;
      for (std::int64_t i = 0; i < runs; ++i) transfer_run(pair, memory, static_cast<typename Pair::Index>(i));
      for (std::int64_t p = runs * run; p < to.end; ++p) transfer_byte(pair, memory, p);
      return;
    }
  }
  if constexpr ((methods_of<Pair> & by_gather) != 0) {
    if (to.method == Method::gather) {
      for (std::int64_t i = 0; 16 * i < to.end; ++i)
        transfer_gathered(pair, memory, i, to.end, cover(pair.map, 16 * i, std::min(16 * i + 16, to.end) - 1));
      return;
    }
  }
  if constexpr ((methods_of<Pair> & by_words) != 0)
    visit_word(to.word, [&](auto word) { transfer_words<typename decltype(word)::type>(pair, memory, to.end); });
}

}  // namespace host

/// Moves the bytes of one transfer, as run_on_host() of KernelArgs does those of a pack or unpack.
template <class Translate>
void run_on_host(const TransferArgs& args, const Translate& translate) {
  TransferArgs local = args;
  for (KernelArgs* side : {&local.from, &local.to}) {
    datatype::Program& program = side->program;
    if (program.nodes) program.nodes = static_cast<const datatype::Node*>(translate(program.nodes));
    if (program.lookaside) program.lookaside = static_cast<const std::int64_t*>(translate(program.lookaside));
  }
  const HostMemory<Translate> memory{translate};
  visit_pair(local, [&](auto pair) { host::transfer_all(typename decltype(pair)::type(local), memory, local.to); });
}

// --- batches --------------------------------------------------------------------------------------------------------

namespace host {

template <class Word, class Memory>
void batch_words(const BatchJob& job, const Memory& memory) {
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  for (std::int64_t p = job.begin; p < range.head_end; ++p) transfer_byte(job.pair, memory, p);
  for (std::int64_t i = range.first; i < range.last; ++i) {
    const PairPlace place = job.pair.place(static_cast<std::uint32_t>(i), NoTile());
    memory.template store<Word>(place.to, memory.template load<Word>(place.from));
  }
  for (std::int64_t p = range.tail_begin; p < job.end; ++p) transfer_byte(job.pair, memory, p);
}

template <class Memory>
void batch_job(const BatchJob& job, const Memory& memory) {
  if (job.word != 0)
    return visit_word(job.word, [&](auto word) { batch_words<typename decltype(word)::type>(job, memory); });
  for (std::int64_t p = job.begin; p < job.end; p += 16)
    transfer_pieces(job.pair, memory, p, static_cast<int>(std::min<std::int64_t>(16, job.end - p)), NoTile());
}

}  // namespace host

/// Moves the bytes of one job of a batch.
template <class Translate>
void run_on_host(const BatchJob& given, const Translate& translate) {
  BatchJob job = given;
  for (BatchMap* map : {&job.pair.from_map, &job.pair.map}) {
    datatype::Program& program = map->program;
    if (program.nodes) program.nodes = static_cast<const datatype::Node*>(translate(program.nodes));
    if (program.lookaside) program.lookaside = static_cast<const std::int64_t*>(translate(program.lookaside));
  }
  host::batch_job(job, HostMemory<Translate>{translate});
}

/// Does all jobs of a batch; `ended(completion)` is called after each.
template <class Translate, class Ended>
void run_on_host(const BatchArgs& batch, const Translate& translate, const Ended& ended) {
  for (int i = 0; i < batch.jobs; ++i) {
    run_on_host(batch.job[i], translate);
    ended(batch.job[i].completion);
  }
  if (batch.completion.flag != nullptr) ended(batch.completion);
}

}  // namespace gpudt::device
