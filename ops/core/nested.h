// Nodes that an operator runs inside its own node.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/operator.h"

namespace dynq {

// The attributes of an inner node.
class IntegerAttributes : public Attributes {
 public:
  explicit IntegerAttributes(std::vector<std::pair<const char*, int64_t>> values) : values_(std::move(values)) {}

  int64_t integer(const char* name, int64_t absent) const override {
    for (const auto& value : values_)
      if (std::strcmp(value.first, name) == 0) return value.second;
    return absent;
  }
  std::string text(const char*, const char* absent) const override { return absent; }
  std::vector<int64_t> integers(const char*) const override { return {}; }

 private:
  std::vector<std::pair<const char*, int64_t>> values_;
};

// One run of an inner node, on the threads of the outer one. Its outputs have memory already.
class Inner : public Context {
 public:
  Inner(Context& outer, std::initializer_list<Tensor> inputs, std::initializer_list<void*> outputs)
      : outer_(outer), inputs_(inputs), outputs_(outputs) {}

  Tensor input(size_t index) override { return inputs_[index]; }
  void* output(size_t index, const Shape&) override { return outputs_[index]; }
  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    outer_.parallel_for(count, task, data);
  }
  bool takes_single_tasks() const override { return outer_.takes_single_tasks(); }

 private:
  Context& outer_;
  std::vector<Tensor> inputs_;
  std::vector<void*> outputs_;
};

// Inner nodes with tasks that run together: those of the first parallel_for() of each node. A node starts inside the
// parallel_for() of the one before, so that the tasks of all are known when those of the last one are. Tasks of a later
// parallel_for() do not take part. Single tasks do if `takes_single_tasks` and they are the last ones of their node.
class Together : public Context {
 public:
  // start(i) runs node i, with this as the outer context.
  Together(Context& outer, size_t count, bool takes_single_tasks, std::function<void(size_t, Context&)> start)
      : outer_(outer), count_(count), takes_single_tasks_(takes_single_tasks), start_(std::move(start)) {
    start_others();
  }

  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    waiting_.push_back({count, task, data});
    start_others();
    run_waiting();
  }

  Tensor input(size_t index) override { return outer_.input(index); }
  void* output(size_t index, const Shape& shape) override { return outer_.output(index, shape); }
  bool takes_single_tasks() const override { return takes_single_tasks_; }

 private:
  struct Tasks {
    size_t count;
    void (*task)(void*, size_t);
    void* data;
  };

  void start_others() {
    while (next_ < count_) start_(next_++, *this);
  }

  void run_waiting() {
    std::vector<Tasks> all;
    all.swap(waiting_);
    size_t total = 0;
    for (const Tasks& tasks : all) total += tasks.count;
    if (total == 0) return;  // they ran with those of a later node
    const auto run = [](void* data, size_t index) {
      for (const Tasks& tasks : *static_cast<std::vector<Tasks>*>(data)) {
        if (index < tasks.count) return tasks.task(tasks.data, index);
        index -= tasks.count;
      }
    };
    outer_.parallel_for(total, run, &all);
  }

  Context& outer_;
  size_t count_, next_ = 0;
  bool takes_single_tasks_;
  std::function<void(size_t, Context&)> start_;
  std::vector<Tasks> waiting_;
};

}  // namespace dynq
