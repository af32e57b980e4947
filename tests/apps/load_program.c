// Runs an MPI program that is a library, loaded as Python loads mpi4py: what it is linked to is visible to it alone.
//
// usage: load-program LIBRARY ARGUMENTS...
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* const program = library == NULL ? NULL : dlsym(library, "program_main");
  if (program == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  int (*main_of)(int, char**) = NULL;
  *(void**)&main_of = program;
  return main_of(argc - 1, argv + 1);
}
