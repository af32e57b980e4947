// Streams that are being captured: what such a stream is given goes into a graph, as a list. Only one stream can go
// into a graph: events, by which CUDA lets others join, invalidate the capture.
#pragma once

#include <memory>
#include <vector>

#include "device/sim/executor.hpp"

namespace gpudt::sim {

/// What a graph does, one operation after the other, and what lives as long as the graph and all that is made of it.
/// Only the capture changes it, and the program, in one thread at a time as CUDA demands.
struct Graph {
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<void>> kept;
};
using GraphRef = std::shared_ptr<Graph>;

/// The calling thread's, as cudaThreadExchangeStreamCaptureMode() sets it.
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/// An object to be kept: when it is given back, a thread that does nothing else calls destroy(data).
std::shared_ptr<void> user_object(void (*destroy)(void*), void* data);

struct CaptureState {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  GraphRef graph;  ///< only of an active capture
};

cudaError_t begin_capture(const StreamRef& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(const Stream& stream, GraphRef& graph);
CaptureState capture_state(const Stream& stream);
/// The stream, or all of the device, is destroyed.
void drop_capture(const Stream& stream);
void drop_captures(int device);

/// Whether the stream is being captured; then the graph has the operation.
bool captured(const Stream& stream, Effort effort, const std::function<void()>& work);

enum class Use {
  work,      ///< the stream is to be given work
  question,  ///< the host asks for what the stream has done, waits for it, or does what no graph can hold
  look,      ///< invalidates no capture
};
/// The error if captures do not allow the use of the stream, which then invalidates them: the legacy default stream
/// would wait for a blocking one that is captured.
cudaError_t capture_forbids(const Stream& stream, Use use);
cudaError_t capture_forbids_synchronizing(int device);
/// For calls that might break a capture, also another thread's, by what they do inside.
cudaError_t capture_forbids_unsafe();

}  // namespace gpudt::sim
