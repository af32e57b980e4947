// What is in this process, however it was loaded: ld.so's global scope lacks what Python, and MPI libraries, load with
// dlopen(RTLD_LOCAL).
#pragma once

namespace gpudt::interpose {

/// The first address of the file that a function is in; null if it is in none.
const void* file_of(const void* function);

/// The function `name` of the global scope that this library stands before, or of the program. Null if there is none.
/// Thread-safe.
void* global_function(const char* name);

/// The same, else that of any file which is loaded.
void* loaded_function(const char* name);

/// The function `name` of the file that another one is in, or of those that it needs. Null if they have none.
void* function_beside(const void* other, const char* name);

/// Adds the file that a function is in, and those that it needs, to the global scope for as long as the process runs.
void make_global(const void* function);

}  // namespace gpudt::interpose
