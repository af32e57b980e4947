# A recipe for Spack: copy it to packages/gpudt/package.py of a repository of recipes of yours, set `git`, and
# spack install gpudt ^openmpi
from spack.package import *


class Gpudt(MesonPackage, CudaPackage):
    """Preloaded under an MPI program, lets it pass GPU pointers with any datatype to any MPI call, over an MPI that
    knows nothing of GPUs."""

    license("BSD-3-Clause")
    version("main", branch="main")

    variant("programs", default=True, description="Build the measuring programs")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("mpi")
    depends_on("spdlog", type="build")
    depends_on("fmt")
    depends_on("cli11", type="build", when="+programs")
    depends_on("nlohmann-json", type="build")
    depends_on("cuda@11.8:", when="+cuda")

    def meson_args(self):
        architectures = self.spec.variants["cuda_arch"].value if self.spec.satisfies("+cuda") else ()
        return [
            f"-Dmpi={self.spec['mpi'].mpicc}",
            f"-Dcuda={'enabled' if self.spec.satisfies('+cuda') else 'disabled'}",
            f"-Dgpu_archs={','.join(arch for arch in architectures if arch != 'none')}",
            f"-Dprograms={'true' if self.spec.satisfies('+programs') else 'false'}",
            "-Dtests=false",
            "-Dinitiated=disabled",
        ]
