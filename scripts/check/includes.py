#!/usr/bin/env python3
"""Check that each source includes, itself or by headers of the project, a header of the C++ library for every name of
std that it uses. A build with precompiled headers (base/precompiled.hpp) compiles without them, other builds fail.
Prints each name whose header is not included, and exits with 1 if there is one.

  includes.py
"""
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Of the headers that are precompiled: the names that have to be reached by one of them. What several headers are
# certain to declare stands with each of these.
NAMES = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_backward copy_if copy_n count count_if "
                 "equal equal_range fill fill_n find find_if find_if_not for_each generate is_sorted lower_bound "
                 "max max_element min min_element minmax minmax_element mismatch move_backward none_of nth_element "
                 "partition ranges remove remove_if replace reverse rotate set_difference shuffle sort stable_sort "
                 "swap_ranges transform unique upper_bound",
    "array": "array to_array",
    "atomic": "atomic atomic_bool atomic_flag atomic_int atomic_ref atomic_signal_fence atomic_thread_fence "
              "memory_order memory_order_acq_rel memory_order_acquire memory_order_relaxed memory_order_release "
              "memory_order_seq_cst",
    "chrono": "chrono chrono_literals micro milli",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t size_t to_integer",
    "cstdint": "int8_t int16_t int32_t int64_t intptr_t uint8_t uint16_t uint32_t uint64_t uintptr_t",
    "cstdlib": "abort aligned_alloc atexit atof atoi exit free getenv malloc quick_exit strtod strtol strtoll "
               "strtoul strtoull",
    "cstring": "memchr memcmp memcpy memmove memset strchr strcmp strcpy strcspn strerror strlen strncmp strncpy "
               "strrchr strstr",
    "exception": "current_exception exception exception_ptr rethrow_exception set_terminate terminate "
                 "uncaught_exceptions",
    "functional": "bind cref function hash invoke less mem_fn not_fn plus ref reference_wrapper",
    "map": "map multimap",
    "memory": "addressof allocate_shared allocator default_delete dynamic_pointer_cast enable_shared_from_this "
              "make_shared make_unique shared_ptr static_pointer_cast unique_ptr weak_ptr",
    "mutex": "adopt_lock adopt_lock_t call_once defer_lock lock_guard mutex once_flag recursive_mutex scoped_lock "
             "unique_lock",
    "optional": "nullopt nullopt_t optional",
    "random": "bernoulli_distribution minstd_rand mt19937 mt19937_64 random_device uniform_int_distribution "
              "uniform_real_distribution",
    "span": "as_bytes as_writable_bytes dynamic_extent span",
    "sstream": "istringstream ostringstream stringstream",
    "string": "getline stod stoi stol stoul stoull string to_string",
    "string_view": "string_view",
    "thread": "this_thread thread",
    "tuple": "apply forward_as_tuple get ignore make_tuple tie tuple tuple_cat",
    "type_traits": "bool_constant conditional_t decay_t enable_if_t extent_v false_type invoke_result_t "
                   "is_arithmetic_v is_base_of_v is_convertible_v is_enum_v is_integral_v is_invocable_r_v "
                   "is_invocable_v is_null_pointer_v is_same_v is_signed_v is_trivially_copyable_v is_void_v "
                   "make_unsigned make_unsigned_t remove_cvref_t remove_pointer_t remove_reference_t true_type "
                   "type_identity type_identity_t underlying_type_t",
    "utility": "as_const declval exchange forward index_sequence index_sequence_for make_index_sequence make_pair move "
               "pair swap",
    "variant": "get get_if holds_alternative monostate variant visit",
    "vector": "vector",
    # Which these include, too.
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero popcount",
    "initializer_list": "initializer_list",
    "limits": "numeric_limits",
    "new": "align_val_t bad_alloc destroying_delete_t nothrow",
    "numeric": "accumulate iota partial_sum transform_reduce",
    "stdexcept": "invalid_argument length_error logic_error out_of_range runtime_error",
    "system_error": "errc error_code system_error",
}
# Headers that each of these includes: by the standard, or since it needs them.
INCLUDED_BY = {
    "algorithm": {"utility", "initializer_list"},
    "array": {"initializer_list", "cstddef", "utility", "tuple"},
    "atomic": {"cstddef", "cstdint"},
    "cstring": {"cstddef"},
    "cstdlib": {"cstddef"},
    "cstdio": {"cstddef"},
    "functional": {"utility", "type_traits"},
    "map": {"initializer_list", "utility", "tuple"},
    "memory": {"new", "utility", "cstddef", "type_traits", "exception"},
    "mutex": {"chrono", "system_error", "utility", "exception"},
    "condition_variable": {"mutex", "chrono"},
    "optional": {"initializer_list", "utility", "type_traits"},
    "set": {"initializer_list", "utility"},
    "span": {"initializer_list", "array", "cstddef"},
    "sstream": {"string"},
    "stdexcept": {"exception", "string"},
    "string": {"initializer_list", "string_view", "cstddef", "utility"},
    "string_view": {"cstddef", "utility"},
    "thread": {"chrono"},
    "tuple": {"utility", "type_traits"},
    "unordered_map": {"initializer_list", "utility", "tuple"},
    "deque": {"initializer_list", "utility"},
    "list": {"initializer_list", "utility"},
    "utility": {"initializer_list", "type_traits", "cstddef"},
    "variant": {"initializer_list", "utility", "type_traits"},
    "vector": {"initializer_list", "utility", "cstddef"},
    "filesystem": {"string", "system_error", "chrono"},
    "fstream": {"string", "system_error"},
    "iostream": {"string"},
    "ostream": {"string"},
}
HEADERS_OF = {}
for header, names in NAMES.items():
    for name in names.split():
        HEADERS_OF.setdefault(name, set()).add(header)
HEADERS_OF["get"] |= {"array", "utility"}
HEADERS_OF["swap"] |= {"memory", "vector", "string"}
HEADERS_OF["hash"] |= {"memory", "string", "string_view", "unordered_map", "optional"}
HEADERS_OF["move"] |= {"algorithm"}
HEADERS_OF["size_t"] |= {"cstdio"}
HEADERS_OF["milli"] |= {"ratio"}
HEADERS_OF["micro"] |= {"ratio"}
HEADERS_OF["errc"] |= {"charconv"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
USE = re.compile(r"\bstd::(\w+)")
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


@functools.lru_cache(maxsize=None)
def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def resolve(name, by):
    """The file of the project that `by` includes as `name`: from the root, or beside it."""
    for candidate in (name, str(pathlib.PurePosixPath(by).parent / name)):
        if (ROOT / candidate).is_file():
            return candidate
    return None


def reached(name):
    """The headers of the C++ library that a file includes, itself or by others of the project."""
    seen, headers, left = {name}, set(), [name]
    while left:
        file = left.pop()
        for own, system in INCLUDE.findall(text_of(file)):
            found = resolve(own, file) if own else None
            if system:
                headers.add(system)
            elif found and found not in seen:
                seen.add(found)
                left.append(found)
    todo = list(headers)
    while todo:
        more = INCLUDED_BY.get(todo.pop(), set()) - headers
        headers |= more
        todo += more
    return headers


def main():
    for header in ("base/precompiled.hpp", "tests/support/precompiled.hpp"):
        unknown = [name for _, name in INCLUDE.findall(text_of(header)) if name and name not in NAMES]
        if unknown:
            sys.exit(f"includes.py: the table of names lacks the headers {' '.join(unknown)}, which are precompiled")
    patterns = [f"{folder}/*.{ending}" for folder in ("base", "datatype", "device", "interpose", "pingpong", "tests")
                for ending in ("cpp", "hpp")]
    files = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split()
    failed = 0
    for file in files:
        headers = reached(file)
        for name in sorted(set(USE.findall(NO_CODE.sub(" ", text_of(file))))):
            wanted = HEADERS_OF.get(name, set())
            if wanted and not wanted & headers:
                print(f"{file}: std::{name} needs <{'> or <'.join(sorted(wanted))}>")
                failed += 1
    print(f"includes: {len(files)} files, {failed} names whose headers are not reached")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
