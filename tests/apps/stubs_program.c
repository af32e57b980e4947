/* A sequential program over stubs.c, which knows no MPI library. Beside gpudt its calls go to the stubs all the same.
 */
#include <stdio.h>

int stub_calls(void);
int MPI_Init(int*, char***);
int MPI_Comm_rank(int, int*);
int MPI_Allreduce(const void*, void*, int, int, int, int);
int MPI_Finalize(void);
void mpi_init_(int*);
void mpi_comm_rank_(const int*, int*, int*);
void mpi_allreduce_(const int*, int*, const int*, const int*, const int*, const int*, int*);
void mpi_finalize_(int*);

int main(int argc, char** argv) {
  const int from = 70000, one = 1;
  int rank[2] = {-1, -1}, to[2] = {-1, -1}, error = -1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(one, &rank[0]);
  MPI_Allreduce(&from, &to[0], 1, 1, 1, 1);
  MPI_Finalize();
  mpi_init_(&error);
  mpi_comm_rank_(&one, &rank[1], &error);
  mpi_allreduce_(&from, &to[1], &one, &one, &one, &one, &error);
  mpi_finalize_(&error);
  const int right = rank[0] == 0 && rank[1] == 0 && to[0] == from && to[1] == from && error == 0;
  const int calls_of_fortran = 4 + 2; /* two of these stubs call those of C */
  printf("%s: %d calls of stubs\n", right ? "ok" : "WRONG", stub_calls());
  return right && stub_calls() >= 4 + 4 && stub_calls() <= 4 + calls_of_fortran ? 0 : 1;
}
