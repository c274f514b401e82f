// How work is cut into tasks and how tasks are run.
#pragma once

#include <algorithm>
#include <atomic>
#include <new>

#include "core/operator.h"

namespace dynq {

// Elements of one task: a few microseconds of work, while handing out a task takes 0.5 microseconds.
constexpr int64_t kTaskElements = 32768;

// Of one product: each still takes some microseconds.
constexpr int64_t kMaxTasks = 64;

// The parts, at least 1 and at most `most`, that `elements` elements are split into.
constexpr int64_t part_count(int64_t elements, int64_t most) {
  const int64_t parts = elements / kTaskElements;
  return parts < 1 ? 1 : parts < most ? parts : most;
}

// The tasks, at least 1, that a convolution of so many products is cut into: a few small ones, or more large ones.
inline int64_t wanted_tasks(int64_t products) {
  constexpr int64_t kSmallTask = 1 << 21, kLargeTask = 1 << 24, kFewTasks = 8;
  return std::max({int64_t{1}, std::min(products / kSmallTask, kFewTasks), std::min(products / kLargeTask, kMaxTasks)});
}

// Calls task(i) for every i < count: a single task on the calling thread, several on the threads of `context`. If a
// task throws std::bad_alloc, rethrows it after the last task: exceptions cannot leave the threads of ONNX Runtime.
// Tasks must throw no other exception.
template <class Task>
void run_tasks(Context& context, int64_t count, const Task& task, bool hands_over_single = false) {
  if (count == 1 && !hands_over_single) {
    task(int64_t{0});
    return;
  }
  struct Run {
    const Task& task;
    std::atomic<bool> has_memory;
  } run = {task, {true}};
  const auto call = [](void* data, size_t index) {
    Run& all = *static_cast<Run*>(data);
    try {
      all.task(static_cast<int64_t>(index));
    } catch (const std::bad_alloc&) {
      all.has_memory = false;
    }
  };
  context.parallel_for(static_cast<size_t>(count), call, &run);
  if (!run.has_memory) throw std::bad_alloc();
}

// The same for the tasks of a node after which it is done: a single one may run beside those of other nodes (nested.h).
template <class Task>
void run_last_tasks(Context& context, int64_t count, const Task& task) {
  run_tasks(context, count, task, context.takes_single_tasks());
}

}  // namespace dynq
