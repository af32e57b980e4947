"""Reads the table of MPI functions (interpose/functions.txt) and the prototypes of an installed mpi.h."""

import re
import subprocess
import sys
from typing import NamedTuple

BUFFERS = {"in", "out", "inout"}  # what MPI reads, writes, or both: a choice buffer of the standard

# The C type of an argument by its role; with a second entry, that of the large-count form (suffix _c).
C_TYPES = {
    "in": ("const void *",),
    "out": ("void *",),
    "inout": ("void *",),
    "address": ("const void *",),  # compared with others, its memory is not accessed
    "address_ref": ("void *",),  # where an address is stored
    "count": ("int", "MPI_Count"),
    "count_ref": ("int *", "MPI_Count *"),
    "counts": ("const int *", "const MPI_Count *"),
    "displs": ("const int *", "const MPI_Aint *"),
    "aint_displs": ("const MPI_Aint *",),
    "disp_unit": ("int", "MPI_Aint"),
    "aint_count": ("MPI_Aint", "MPI_Count"),
    "aint_count_ref": ("MPI_Aint *", "MPI_Count *"),
    "mpi_count": ("MPI_Count",),
    "aint": ("MPI_Aint",),
    "offset": ("MPI_Offset",),
    "int": ("int",),
    "int_ref": ("int *",),
    "length": ("int",),  # of the arrays of requests, statuses and partitions
    "partitions": ("int *",),  # MPICH 4.0's header lacks the const
    "type": ("MPI_Datatype",),
    "types": ("const MPI_Datatype *",),
    "type_ref": ("MPI_Datatype *",),
    "op": ("MPI_Op",),
    "op_ref": ("MPI_Op *",),
    "info": ("MPI_Info",),
    "new_info": ("MPI_Info *",),
    "group": ("MPI_Group",),
    "new_group": ("MPI_Group *",),
    "comm": ("MPI_Comm",),
    "comm_ref": ("MPI_Comm *",),
    "win": ("MPI_Win",),
    "win_ref": ("MPI_Win *",),
    "new_win": ("MPI_Win *",),
    "file": ("MPI_File",),
    "stream": ("MPIX_Stream",),
    "new_stream": ("MPIX_Stream *",),
    "new_comm": ("MPI_Comm *",),
    "message_ref": ("MPI_Message *",),
    "new_message": ("MPI_Message *",),
    "request": ("MPI_Request *",),
    "new_request": ("MPI_Request *",),
    "request_value": ("MPI_Request",),
    "requests": ("MPI_Request *",),
    "status": ("MPI_Status *",),
    "statuses": ("MPI_Status *",),
    "later_status": ("MPI_Status *",),  # set after the call
    "later_statuses": ("MPI_Status *",),
    "flag": ("int *",),
    "index": ("int *",),  # of one request: counts from 1 in Fortran
    "indices": ("int *",),
    "outcount": ("int *",),  # of indices
    "datarep": ("const char *",),
    "argc": ("int *",),
    "argv": ("char ***",),
}

# Functions with a `void *` that is no buffer of a message, a file or a window.
NOT_BUFFERS = {
    "MPI_Alloc_mem": "gives an address",
    "MPI_Free_mem": "takes back what MPI_Alloc_mem gave",
    "MPI_Get_address": "computes with an address",
    "MPI_Win_allocate": "gives an address",
    "MPI_Win_allocate_shared": "gives an address",
    "MPI_Win_shared_query": "gives an address",
    "MPI_Grequest_start": "extra state",
    "MPIX_Grequest_start": "extra state",
    "MPIX_Grequest_class_allocate": "extra state",
    "MPI_Register_datarep": "extra state",
    "MPI_Keyval_create": "extra state",
    "MPI_Comm_create_keyval": "extra state",
    "MPI_Type_create_keyval": "extra state",
    "MPI_Win_create_keyval": "extra state",
    "MPI_Attr_get": "attribute",
    "MPI_Attr_put": "attribute",
    "MPI_Comm_get_attr": "attribute",
    "MPI_Comm_set_attr": "attribute",
    "MPI_Type_get_attr": "attribute",
    "MPI_Type_set_attr": "attribute",
    "MPI_Win_get_attr": "attribute",
    "MPI_Win_set_attr": "attribute",
    "MPI_Address": "computes with an address (removed from MPI-3.0)",
}
NOT_BUFFERS.update({name + "_c": why for name, why in NOT_BUFFERS.items()})
TOOL_PREFIX = "MPI_T_"  # the tool information interface: values of control and performance variables

# Collective over a communicator, without a buffer (interpose/calls/in_order.cpp), and for Fortran over Open MPI
# interpose/fortran/in_order.cpp, where arguments pass as they are. A header may lack some.
IN_ORDER = (
    "MPI_Comm_dup",
    "MPI_Comm_dup_with_info",
    "MPI_Comm_idup",
    "MPI_Comm_idup_with_info",
    "MPI_Comm_create",
    "MPI_Comm_split",
    "MPI_Comm_split_type",
    "MPI_Intercomm_create",
    "MPI_Cart_create",
    "MPI_Cart_sub",
    "MPI_Graph_create",
    "MPI_Dist_graph_create",
    "MPI_Dist_graph_create_adjacent",
    "MPI_Win_allocate",
    "MPI_Win_allocate_shared",
    "MPI_File_open",
    "MPI_Comm_spawn",
    "MPI_Comm_spawn_multiple",
    "MPI_Comm_accept",
    "MPI_Comm_connect",
)
IN_FORTRAN_TOO = ("MPI_Win_allocate_cptr", "MPI_Win_allocate_shared_cptr")  # generic names

# Interposed without a row: these, attributes and memory of windows, and sessions (a header may lack them).
OUTSIDE_THE_TABLE = (
    "MPI_Session_init",
    "MPI_Session_finalize",
    "MPI_Session_get_info",
    "MPI_Info_get",
    "MPI_Info_get_valuelen",
    "MPI_Info_get_string",
    "MPI_Info_get_nkeys",
    "MPI_Info_get_nthkey",
    "MPI_Info_dup",
    "MPI_Win_get_attr",
    "MPI_Win_shared_query",
    "MPI_Win_shared_query_c",
    "MPI_T_init_thread",
    "MPI_T_pvar_get_num",
    "MPI_T_pvar_get_info",
    "MPI_T_pvar_get_index",
    "MPI_T_pvar_session_free",
    "MPI_T_pvar_handle_alloc",
    "MPI_T_pvar_handle_free",
    "MPI_T_pvar_start",
    "MPI_T_pvar_stop",
    "MPI_T_pvar_read",
    "MPI_T_pvar_write",
    "MPI_T_pvar_reset",
    "MPI_T_pvar_readreset",
    "MPI_T_category_get_pvars",
    *IN_ORDER,
)
# Of these, with wrappers of their own for Fortran.
FORTRAN_BY_HAND = ("MPI_Win_get_attr",)


def fortran_by_hand(family):
    """Those that have such a wrapper where Fortran procedures are those of this family of MPI libraries."""
    return {"none": (), "mpich": FORTRAN_BY_HAND}.get(family, (*FORTRAN_BY_HAND, *IN_ORDER, *IN_FORTRAN_TOO))


# Whose large-count forms are not generated: what has a template for both kinds of counts.
LARGE_BY_HAND = {
    "MPI_Buffer_attach",
    "MPI_Buffer_detach",
    "MPI_Pack",
    "MPI_Unpack",
    "MPI_Pack_external",
    "MPI_Unpack_external",
}
COLLECTIVE = re.compile(
    r"MPI_I?(neighbor_)?(bcast|(all)?gather|(reduce_)?scatter|alltoall|(all)?reduce|(ex)?scan)", re.IGNORECASE
)


def own_name(symbol):
    """What this library calls its own function for an exported symbol."""
    return "gpudt_" + symbol


class Argument(NamedTuple):
    role: str
    name: str

    def c_type(self, large=False):
        return C_TYPES[self.role][-1 if large else 0]


class Function(NamedTuple):
    name: str
    arguments: list

    def has_buffer(self):
        return any(argument.role in BUFFERS for argument in self.arguments)

    def large_by_hand(self):
        return self.name in LARGE_BY_HAND or COLLECTIVE.match(self.name) is not None

    def has_large_form(self):
        return any(len(C_TYPES[argument.role]) > 1 for argument in self.arguments)

    def c_types(self, large=False):
        return [argument.c_type(large) for argument in self.arguments]

    def declared_names(self, prototypes):
        """The names under which the header declares it: its own and MPIX_, each plain and with the suffix _c."""
        for plain in (self.name, self.name.replace("MPI_", "MPIX_", 1)):
            for name in [plain, plain + "_c"][: 1 + self.has_large_form()]:
                if name in prototypes:
                    yield name


def read_table(path):
    """The rows of the table, in order."""
    functions = []
    with open(path, encoding="ascii") as table:
        for line in table:
            words = line.split("#")[0].split()
            if not words:
                continue
            arguments = [Argument(role, name or role) for role, _, name in (word.partition(":") for word in words[1:])]
            for argument in arguments:
                if argument.role not in C_TYPES:
                    raise ValueError(f"{path}: {words[0]}: unknown role {argument.role!r}")
            functions.append(Function(words[0], arguments))
    names = [function.name for function in functions]
    if len(names) != len(set(names)):
        raise ValueError(f"{path}: a function has two rows")
    return functions


def parameter_type(parameter):
    """The type in a parameter declaration with its name taken away: `const int counts[]` -> `const int *`."""
    parameter = " ".join(parameter.replace("*", " * ").split())
    array = parameter.endswith("[]")
    words = parameter.removesuffix("[]").split()
    if len(words) > 1 and re.fullmatch(r"\w+", words[-1]):
        words.pop()
    words += ["*"] * array
    return re.sub(r" \*", "*", " ".join(words)).replace("*", " *", 1)


def read_prototypes(preprocessor):
    """Function name -> list of parameter types, of mpi.h (and mpi-ext.h), as run through the `preprocessor` command."""
    includes = "#include <mpi.h>\n#if __has_include(<mpi-ext.h>)\n#include <mpi-ext.h>\n#endif\n"
    text = subprocess.run(
        [*preprocessor, "-E", "-P", "-x", "c", "-"], input=includes, capture_output=True, text=True, check=True
    ).stdout
    prototypes = {}
    for name, parameters in re.findall(r"\bint\s+(MPIX?_\w+)\s*\(([^()]*)\)", text):
        types = [parameter_type(parameter) for parameter in parameters.split(",")]
        prototypes[name] = [] if types == ["void"] else types
    return prototypes


def generate(header, texts):
    """The main program of a generator, with the arguments TABLE OUTPUT PREPROCESSOR...: writes `header`, and of each
    function of the table what `texts(function, prototypes)` yields."""
    table, output, *preprocessor = sys.argv[1:]
    prototypes = read_prototypes(preprocessor)
    with open(output, "w", encoding="ascii") as out:
        out.write(header)
        for function in read_table(table):
            out.writelines(texts(function, prototypes))
