// Functions in the files of this process, however these were loaded: ld.so's global scope lacks files that Python or
// MPI libraries load with dlopen(RTLD_LOCAL).
#pragma once

namespace gpudt::interpose {

/// The first address of the file that has a function; null if no file has it.
const void* file_of(const void* function);

/// The function `name` that follows this library's in the global scope, or else the program's. Null if there is none.
/// Thread-safe.
void* global_function(const char* name);

/// global_function() or, if that is null, the function `name` of any loaded file.
void* loaded_function(const char* name);

/// The function `name` in the file that has `other`, or in the files which that file needs. Null if there is none.
void* function_beside(const void* other, const char* name);

/// Adds the file that has a function, and the files which it needs, to the global scope, until the process ends.
void make_global(const void* function);

}  // namespace gpudt::interpose
