// gpudt-mesh: the Voronoi block of the HACC analysis (Jenkins et al., figure 7), whose scalars and arrays lie in nine
// separate allocations of GPU memory: packed and sent by one MPI datatype with absolute addresses, against one copy
// for each field. An ordinary MPI program; each rank holds another number of particles and sends its block to the
// next rank. Every byte is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "copies"};
constexpr const char* reference_way = "copies";
constexpr int tag = 3;

constexpr const char* ways_help = R"(Calls:
  pack      into pinned host memory, as before the block is written to a file
  exchange  with the ranks before and behind, all at once
Ways:
  mpi       MPI_Pack, or MPI_Isend and MPI_Recv, with one struct type on MPI_BOTTOM
  copies    one cudaMemcpyAsync for each field to or from pinned memory, and a message from there
The column "bytes" is what rank 0 holds. The column /hand is the median divided by that of copies.
)";

/// The part of the block that is no pointer.
struct Header {
  int num_verts, num_cells, num_cell_verts, num_complete_cells, num_cell_faces, num_face_verts, num_orig_particles;
  float mins[3], maxs[3];
};

/// How many there are for `particles` particles: the means of a Poisson-Voronoi tessellation of space.
Header describe_cells(int particles) {
  constexpr double verts = 6.77, cell_verts = 27.07, faces = 15.54, face_verts = 5.23;
  const auto times = [particles](double mean) { return static_cast<int>(particles * mean) + 1; };
  Header header = {};
  header.num_orig_particles = header.num_cells = header.num_complete_cells = particles;
  header.num_verts = times(verts);
  header.num_cell_verts = times(cell_verts);
  header.num_cell_faces = times(faces);
  header.num_face_verts = times(faces * face_verts);
  return header;
}

Message header_message() {
  const int counts[] = {7, 6};
  const MPI_Aint places[] = {offsetof(Header, num_verts), offsetof(Header, mins)};
  const MPI_Datatype types[] = {MPI_INT, MPI_FLOAT};
  MPI_Datatype type;
  PMPI_Type_create_struct(2, counts, places, types, &type);
  PMPI_Type_commit(&type);
  return {type, true, 1, StridedBlocks{0, sizeof(Header), {}}};
}

Message array_message(MPI_Datatype type, int count) {
  int width = 0;
  PMPI_Type_size(type, &width);
  return {type, false, count, StridedBlocks{0, std::int64_t{width} * count, {}}};
}

/// The scalars, then vertices, sites, areas, vols, cells, face_verts, num_cell_faces and num_face_verts.
std::vector<Message> fields_of(const Header& header) {
  std::vector<Message> fields;
  fields.push_back(header_message());
  for (const int count :
       {3 * header.num_verts, 3 * header.num_orig_particles, header.num_complete_cells, header.num_complete_cells}) {
    fields.push_back(array_message(MPI_FLOAT, count));
  }
  for (const int count :
       {header.num_cell_verts, header.num_face_verts, header.num_complete_cells, header.num_cell_faces}) {
    fields.push_back(array_message(MPI_INT, count));
  }
  return fields;
}

/// A block whose fields lie in allocations of their own.
class Mesh {
 public:
  Mesh(int particles, Canvas& canvas) {
    for (Message& field : fields_of(describe_cells(particles))) {
      parts_.push_back({std::move(field), MessageBuffer(Place::device, canvas)});
      parts_.back().memory.reserve(parts_.back().contents);
    }
  }

  /// All fields from MPI_BOTTOM.
  Message whole() const {
    std::vector<int> counts;
    std::vector<MPI_Aint> places;
    std::vector<MPI_Datatype> types;
    ListedBlocks blocks;
    for (const Part& part : parts_) {
      counts.push_back(part.contents.count());
      types.push_back(part.contents.type());
      places.emplace_back();
      PMPI_Get_address(part.memory.address(), &places.back());
      blocks.offsets.push_back(places.back() - places.front());
      blocks.lengths.push_back(part.contents.size());
    }
    MPI_Datatype type;
    PMPI_Type_create_struct(static_cast<int>(counts.size()), counts.data(), places.data(), types.data(), &type);
    PMPI_Type_commit(&type);
    return {type, true, 1, std::move(blocks)};
  }
  /// What whole()'s blocks, though not its type, are counted from.
  void* origin() const { return parts_.front().memory.address(); }

  void load(Seed seed) {
    for (Part& part : parts_) part.memory.load(part.contents, next_field(seed));
  }
  void poison() {
    for (Part& part : parts_) part.memory.poison(part.contents);
  }
  std::optional<std::string> mismatch(Seed seed) {
    for (Part& part : parts_) {
      if (auto wrong = part.memory.mismatch(part.contents, next_field(seed))) return wrong;
    }
    return std::nullopt;
  }
  /// The packed bytes that load() makes.
  std::vector<std::byte> packed(Seed seed) const {
    std::vector<std::byte> all;
    for (const Part& part : parts_) {
      const std::vector<std::byte> stream = packed_stream(next_field(seed), part.contents.size());
      all.insert(all.end(), stream.begin(), stream.end());
    }
    return all;
  }

 private:
  struct Part {
    Message contents;
    MessageBuffer memory;
  };
  /// Fields differ as rounds do; `seed` is this function's own counter.
  static Seed next_field(Seed& seed) {
    constexpr std::int64_t most_rounds = std::int64_t{1} << 32;
    seed.round += most_rounds;
    return seed;
  }
  std::vector<Part> parts_;
};

/// One way to pack a mesh, and to pass one on round the ring.
class MeshWay {
 public:
  virtual ~MeshWay() = default;
  virtual void pack(void* packed) = 0;
  virtual void exchange() = 0;
};

/// The two meshes of a rank, and who sends and receives them.
struct Ring {
  Mesh& mine;
  Mesh& theirs;
  Message my_type, their_type;
  int next, previous;
};

class TypedWay final : public MeshWay {
 public:
  explicit TypedWay(const Ring& ring) : ring_(ring) {}
  void pack(void* packed) override {
    int position = 0;
    MPI_Pack(MPI_BOTTOM, 1, ring_.my_type.type(), packed, static_cast<int>(ring_.my_type.size()), &position,
             MPI_COMM_WORLD);
  }
  void exchange() override {
    MPI_Request request;
    MPI_Isend(MPI_BOTTOM, 1, ring_.my_type.type(), ring_.next, tag, MPI_COMM_WORLD, &request);
    MPI_Recv(MPI_BOTTOM, 1, ring_.their_type.type(), ring_.previous, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }

 private:
  const Ring& ring_;
};

class CopiesWay final : public MeshWay {
 public:
  explicit CopiesWay(const Ring& ring)
      : ring_(ring),
        packer_(make_block_mover(ring.my_type, Place::pinned)),
        unpacker_(make_block_mover(ring.their_type, Place::pinned)) {
    leaving_.reserve(static_cast<std::size_t>(ring.my_type.size()));
    arriving_.reserve(static_cast<std::size_t>(ring.their_type.size()));
  }
  void pack(void* packed) override { packer_->pack(ring_.mine.origin(), packed); }
  void exchange() override {
    MPI_Request requests[2];
    PMPI_Irecv(arriving_.data(), static_cast<int>(ring_.their_type.size()), MPI_PACKED, ring_.previous, tag,
               MPI_COMM_WORLD, &requests[0]);
    packer_->pack(ring_.mine.origin(), leaving_.data());
    PMPI_Isend(leaving_.data(), static_cast<int>(ring_.my_type.size()), MPI_PACKED, ring_.next, tag, MPI_COMM_WORLD,
               &requests[1]);
    PMPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    unpacker_->unpack(arriving_.data(), ring_.theirs.origin());
    PMPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  }

 private:
  const Ring& ring_;
  std::unique_ptr<Mover> packer_, unpacker_;
  Buffer leaving_{Place::pinned}, arriving_{Place::pinned};
};

std::unique_ptr<MeshWay> make_way(const Ring& ring, const std::string& way) {
  if (way == "mpi") return std::make_unique<TypedWay>(ring);
  return std::make_unique<CopiesWay>(ring);
}

template <class Act>
double timed(Act&& act) {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start = now_us();
  act();
  return now_us() - start;
}

/// The share of a rank is uneven, as the paper's: from 1/2 to 3/2 of the mean.
int particles_of(int rank, std::int64_t mean) {
  constexpr int steps = 5;
  return static_cast<int>(mean / 2 + mean * (rank * 2 % steps) / (steps - 1)) + 1;
}

/// All rows for one number of particles.
class Measurement {
 public:
  Measurement(int rank, int size, std::int64_t particles, Canvas& canvas)
      : rank_(rank),
        previous_((rank + size - 1) % size),
        mine_(particles_of(rank, particles), canvas),
        theirs_(particles_of(previous_, particles), canvas),
        ring_{mine_, theirs_, mine_.whole(), theirs_.whole(), (rank + 1) % size, previous_} {
    packed_.reserve(static_cast<std::size_t>(bytes()));
  }
  std::int64_t bytes() const { return ring_.my_type.size(); }

  /// The entries refer to this object.
  std::vector<Entry> entries(const std::vector<std::string>& ways) {
    std::vector<Entry> entries;
    for (const std::string& name : ways) {
      ways_.push_back(make_way(ring_, name));
      MeshWay* const way = ways_.back().get();
      entries.push_back({"pack", name, [this, way] { return timed([&] { way->pack(packed_.data()); }); },
                         [this, way](std::int64_t round) { return verify_pack(*way, round); },
                         static_cast<double>(bytes())});
      entries.push_back({"exchange", name, [way] { return timed([&] { way->exchange(); }); },
                         [this, way](std::int64_t round) { return verify_exchange(*way, round); },
                         static_cast<double>(bytes())});
    }
    std::stable_sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.call > b.call; });
    return entries;
  }

 private:
  std::optional<std::string> verify_pack(MeshWay& way, std::int64_t round) {
    mine_.load({rank_, round});
    packed_.fill(std::byte{0xFF}, static_cast<std::size_t>(bytes()));
    way.pack(packed_.data());
    return first_difference(mine_.packed({rank_, round}), {packed_.data(), static_cast<std::size_t>(bytes())});
  }
  std::optional<std::string> verify_exchange(MeshWay& way, std::int64_t round) {
    mine_.load({rank_, round});
    theirs_.poison();
    PMPI_Barrier(MPI_COMM_WORLD);
    way.exchange();
    return theirs_.mismatch({previous_, round});
  }

  int rank_, previous_;
  Mesh mine_, theirs_;
  Ring ring_;
  Buffer packed_{Place::pinned};
  std::vector<std::unique_ptr<MeshWay>> ways_;
};

int run(const RunOptions& options, int rank, int size) {
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-mesh", options, machine, rank, {{"particles", 9}, {"bytes", 10}}, reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi"});
  use_gpu(machine);
  contest.print_head();
  Canvas canvas(Place::pinned);
  for (const std::int64_t particles : options.sizes) {
    Measurement measurement(rank, size, particles, canvas);
    contest.measure({std::to_string(particles), std::to_string(measurement.bytes())},
                    {{"particles", particles}, {"bytes", measurement.bytes()}}, measurement.entries(ways));
    contest.rule();
  }
  return contest.finish();
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  RunOptions options;
  options.sizes_text = "512:32K";
  options.factor = 2;
  options.check_sizes = "10,500";
  CommandLine command(
      "The HACC analysis' Voronoi block in GPU memory, packed and sent by one datatype and by hand.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-mesh");
  add_run_options(command, options, all_ways, "Particles of a rank, on average: a range 512:32K, or a list 4K,5000");
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-mesh", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
