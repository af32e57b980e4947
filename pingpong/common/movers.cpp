#include "pingpong/common/movers.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace gpudt::bench {
namespace {

constexpr std::size_t most_copies = 1024;  // beyond, the time is that of a thousand calls and nobody would wait for it

class MpiMover final : public Mover {
 public:
  explicit MpiMover(const Message& message)
      : type_(message.type()), count_(message.count()), size_(static_cast<int>(message.size())) {}
  void start_pack(const void* user, void* packed) override {
    int position = 0;
    MPI_Pack(user, count_, type_, packed, size_, &position, MPI_COMM_SELF);
  }
  void start_unpack(const void* packed, void* user) override {
    int position = 0;
    MPI_Unpack(packed, size_, &position, user, count_, type_, MPI_COMM_SELF);
  }
  void wait() override {}

 private:
  MPI_Datatype type_;
  int count_, size_;
};

/// Rows of `width` bytes: `pitch` apart on the user's side, one behind the other on the packed side.
struct Rows {
  std::int64_t user_offset = 0;
  std::int64_t packed_offset = 0;
  std::int64_t width = 0;
  std::int64_t pitch = 0;
  std::int64_t count = 1;
};

class CopyMover final : public Mover {
 public:
  CopyMover(std::vector<Rows> rows, Place packed, SharedStream stream)
      : rows_(std::move(rows)),
        stream_(stream ? std::move(stream) : std::make_shared<const Stream>()),
        to_packed_(packed == Place::device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost),
        from_packed_(packed == Place::device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice) {}

  void start_pack(const void* user, void* packed) override {
    for (const Rows& rows : rows_) {
      copy(rows, static_cast<std::byte*>(packed) + rows.packed_offset, rows.width,
           static_cast<const std::byte*>(user) + rows.user_offset, rows.pitch, to_packed_);
    }
  }

  void start_unpack(const void* packed, void* user) override {
    for (const Rows& rows : rows_) {
      copy(rows, static_cast<std::byte*>(user) + rows.user_offset, rows.pitch,
           static_cast<const std::byte*>(packed) + rows.packed_offset, rows.width, from_packed_);
    }
  }

  void wait() override { stream_->synchronize(); }

 private:
  void copy(const Rows& rows, void* to, std::int64_t to_pitch, const void* from, std::int64_t from_pitch,
            cudaMemcpyKind kind) const {
    const auto width = static_cast<std::size_t>(rows.width);
    if (rows.count == 1) {
      cuda_check(cudaMemcpyAsync(to, from, width, kind, stream_->get()), "cudaMemcpyAsync");
    } else {
      cuda_check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_pitch), from, static_cast<std::size_t>(from_pitch),
                                   width, static_cast<std::size_t>(rows.count), kind, stream_->get()),
                 "cudaMemcpy2DAsync");
    }
  }

  std::vector<Rows> rows_;
  SharedStream stream_;
  cudaMemcpyKind to_packed_, from_packed_;
};

/// The fewest 2-D copies that make up a layout; none if they are too many or the layout has none.
struct RowPlanner {
  std::vector<Rows> operator()(const StridedBlocks& blocks) const {
    StridedBlocks outer = blocks;
    Rows rows{0, 0, blocks.run, blocks.run, 1};
    if (!outer.dims.empty()) {
      rows.pitch = outer.dims.back().stride;
      rows.count = outer.dims.back().count;
      outer.dims.pop_back();
    }
    std::size_t copies = 1;
    for (const StridedDim& dim : outer.dims) copies *= static_cast<std::size_t>(dim.count);
    if (copies > most_copies) return {};
    std::vector<Rows> plan;
    auto add = [&](std::int64_t offset, std::int64_t) {
      rows.user_offset = offset;
      plan.push_back(rows);
      rows.packed_offset += rows.width * rows.count;
    };
    detail::visit_strided(outer, 0, outer.offset, add);
    return plan;
  }
  std::vector<Rows> operator()(const ListedBlocks&) const { return {}; }
  std::vector<Rows> operator()(const StructBlocks& blocks) const {
    return {{0, 0, blocks.length, blocks.stride, blocks.count}};
  }
};

}  // namespace

std::unique_ptr<Mover> make_mpi_mover(const Message& message) {
  return std::make_unique<MpiMover>(message);
}

std::unique_ptr<Mover> make_copy2d_mover(const Message& message, Place packed, SharedStream stream) {
  std::vector<Rows> plan = std::visit(RowPlanner{}, message.blocks());
  if (plan.empty()) return nullptr;
  return std::make_unique<CopyMover>(std::move(plan), packed, std::move(stream));
}

std::unique_ptr<Mover> make_block_mover(const Message& message, Place packed, SharedStream stream) {
  if (message.block_count() > static_cast<std::int64_t>(most_copies)) return nullptr;
  std::vector<Rows> plan;
  std::int64_t packed_offset = 0;
  message.for_each_block([&](std::int64_t offset, std::int64_t length) {
    plan.push_back({offset, packed_offset, length, length, 1});
    packed_offset += length;
  });
  return std::make_unique<CopyMover>(std::move(plan), packed, std::move(stream));
}

}  // namespace gpudt::bench
