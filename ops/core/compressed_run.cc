#include "core/compressed_run.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "core/verbose.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kUnitRows = 48;    // of a unit: a multiple of the rows that every kernel scores at once
constexpr int64_t kFewHeads = 16;    // with fewer, threads share a head
constexpr int64_t kFewUnits = 16;    // fewer are divided along the keys
constexpr int64_t kPackedRows = 32;  // of query for one head: with fewer, packing the head takes longer than it saves
constexpr int64_t kNarrowGroup = 8;  // of a key: products of so few elements fill no vector, those of panels do
constexpr int64_t kPackedRowsOfNarrow = 2;

// Units use memory again: the system takes longer to give new pages than a unit does to fill them.
class Workspaces {
 public:
  Workspaces(const CompressedRun& run, int64_t rows) : run_(run), rows_(rows) {}

  std::unique_ptr<CompressedWorkspace> take() {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (!free_.empty()) {
        std::unique_ptr<CompressedWorkspace> found = std::move(free_.back());
        free_.pop_back();
        return found;
      }
    }
    return std::make_unique<CompressedWorkspace>(run_, rows_);
  }

  void give_back(std::unique_ptr<CompressedWorkspace> workspace) {
    const std::lock_guard<std::mutex> guard(lock_);
    free_.push_back(std::move(workspace));
  }

 private:
  const CompressedRun& run_;
  const int64_t rows_;
  std::mutex lock_;
  std::vector<std::unique_ptr<CompressedWorkspace>> free_;
};

void attend_unit(const CompressedRun& run, const CompressedHead& key, const CompressedHead& value, int64_t row,
                 int64_t rows, CompressedWorkspace& workspace) {
  CompressedUnit unit(run, key, value, row, rows, workspace);
  unit.score(0, run.n.t);
  unit.soften();
  float* const totals = workspace.totals.get();
  std::fill(totals, totals + unit.elements(), 0.0f);
  unit.add_values(0, run.n.t, totals);
  unit.finish(totals);
}

// The parts of the keys: one if there are many units, since each part takes threads that wait for each other.
int64_t parts_of(const CompressedRun& run, int64_t units) {
  // Parts that do not begin with a panel would write the same scores; those that do not begin with a block would
  // round its words with other steps.
  const bool has_parts = (!run.key.is_per_channel() || run.key.token_group_size() % kWordUnit == 0) &&
                         (run.value.token_groups() == 1 || run.value.token_group_size() % kMaxProducts == 0);
  if (units >= kFewUnits || !has_parts) return 1;
  return std::max<int64_t>(1, (run.n.t + kKeysOfPart / 2) / kKeysOfPart);
}

// Units of a head: blocks of its rows.
struct Units {
  int64_t rows, blocks, count;
  int64_t all_rows;  // of a head

  int64_t row(int64_t i) const { return i % blocks * rows; }
  int64_t rows_of(int64_t i) const { return std::min(rows, all_rows - row(i)); }
};

using Heads = std::vector<std::unique_ptr<CompressedHead>>;

// Each step of the units runs for parts of the keys at once.
void attend_parts(Context& context, const CompressedRun& run, const Units& units, int64_t parts, const Heads& keys,
                  const Heads& values, Workspaces& workspaces) {
  std::vector<std::unique_ptr<CompressedUnit>> all(static_cast<size_t>(units.count));
  std::vector<std::unique_ptr<CompressedWorkspace>> workspaces_of_units(static_cast<size_t>(units.count));
  std::vector<std::vector<float>> totals(static_cast<size_t>(units.count * parts));  // of blocks, to be added in order
  const auto length = [&](int64_t part) { return part + 1 < parts ? kKeysOfPart : run.n.t - part * kKeysOfPart; };
  run_tasks(context, units.count, [&](int64_t i) {
    const auto at = static_cast<size_t>(i), head = static_cast<size_t>(i / units.blocks);
    workspaces_of_units[at] = workspaces.take();
    all[at] = std::make_unique<CompressedUnit>(run, *keys[head], *values[head], units.row(i), units.rows_of(i),
                                               *workspaces_of_units[at]);
  });
  run_tasks(context, units.count * parts,
            [&](int64_t i) { all[static_cast<size_t>(i / parts)]->score(i % parts * kKeysOfPart, length(i % parts)); });
  run_tasks(context, units.count, [&](int64_t i) { all[static_cast<size_t>(i)]->soften(); });
  run_tasks(context, units.count * parts, [&](int64_t i) {
    const CompressedUnit& unit = *all[static_cast<size_t>(i / parts)];
    std::vector<float>& of_part = totals[static_cast<size_t>(i)];
    const int64_t first = i % parts * kKeysOfPart, blocks_of_part = divide_up(length(i % parts), kMaxProducts);
    of_part.resize(static_cast<size_t>(blocks_of_part * unit.elements()));
    for (int64_t block = 0; block < blocks_of_part; ++block)
      unit.add_values(first + block * kMaxProducts, kMaxProducts, of_part.data() + block * unit.elements());
  });
  run_tasks(context, units.count, [&](int64_t i) {
    const CompressedUnit& unit = *all[static_cast<size_t>(i)];
    std::vector<float> sum(static_cast<size_t>(unit.elements()));
    for (int64_t part = 0; part < parts; ++part) {
      const std::vector<float>& of_part = totals[static_cast<size_t>(i * parts + part)];
      for (size_t j = 0; j < of_part.size(); ++j) sum[j % sum.size()] += of_part[j];
    }
    unit.finish(sum.data());
  });
}

// Threads share the rows of a head and, if there are few, its keys.
void attend_few(Context& context, const CompressedRun& run, const CompressedPlan& plan, Workspaces& workspaces) {
  const int64_t heads = run.n.b * run.n.k, all_rows = run.n.rows();
  Heads keys(static_cast<size_t>(heads)), values(static_cast<size_t>(heads));
  std::vector<HeadMemory> memories(static_cast<size_t>(2 * heads));
  run_tasks(context, 2 * heads, [&](int64_t i) {
    const bool is_key = i % 2 == 0;
    auto head = std::make_unique<CompressedHead>(is_key ? run.key : run.value, i / 2, memories[static_cast<size_t>(i)]);
    if (is_key ? plan.packs_key : plan.packs_value) head->pack(is_key);
    (is_key ? keys : values)[static_cast<size_t>(i / 2)] = std::move(head);
  });
  const int64_t blocks = divide_up(all_rows, plan.rows);
  const Units units = {plan.rows, blocks, heads * blocks, all_rows};
  if (plan.parts > 1) return attend_parts(context, run, units, plan.parts, keys, values, workspaces);
  run_tasks(context, units.count, [&](int64_t i) {
    const auto head = static_cast<size_t>(i / units.blocks);
    std::unique_ptr<CompressedWorkspace> workspace = workspaces.take();
    attend_unit(run, *keys[head], *values[head], units.row(i), units.rows_of(i), *workspace);
    workspaces.give_back(std::move(workspace));
  });
}

}  // namespace

CompressedPlan plan_compressed(const CompressedRun& run) {
  const int64_t at_once = active_compressed().score_rows, all_rows = run.n.rows(), heads = run.n.b * run.n.k;
  const bool has_narrow_groups = run.key.groups() > 1 && run.key.group_size() <= kNarrowGroup;
  CompressedPlan plan = {};
  plan.rows = std::clamp<int64_t>(kUnitScores / run.n.t, at_once, kUnitRows) / at_once * at_once;
  plan.packs_value = all_rows >= kPackedRows;
  plan.packs_key =
      plan.packs_value || (has_narrow_groups && !run.key.is_transposed() && all_rows >= kPackedRowsOfNarrow);
  const int64_t blocks = divide_up(all_rows, plan.rows);
  plan.parts = parts_of(run, heads * blocks);
  plan.shares_heads = heads < kFewHeads && (plan.packs_value || blocks * plan.parts > 1);
  plan.name = plan.packs_value ? "panels" : plan.packs_key ? "panels of keys" : "codes as they are stored";
  return plan;
}

void run_compressed(Context& context, const CompressedRun& run) {
  const CompressedPlan plan = plan_compressed(run);
  const int64_t heads = run.n.b * run.n.k, all_rows = run.n.rows();
  if (is_verbose())
    std::fprintf(stderr, "ort_dynq: CompressedAttention, %s rows of query and %s keys in each of %s heads: %s, %s\n",
                 std::to_string(all_rows).c_str(), std::to_string(run.n.t).c_str(), std::to_string(heads).c_str(),
                 active_isa().name, plan.name);
  Workspaces workspaces(run, std::min(plan.rows, all_rows));
  if (plan.shares_heads) return attend_few(context, run, plan, workspaces);
  run_tasks(context, heads, [&](int64_t i) {
    std::unique_ptr<CompressedWorkspace> workspace = workspaces.take();
    CompressedHead key(run.key, i, workspace->heads[0]), value(run.value, i, workspace->heads[1]);
    if (plan.packs_key) key.pack(true);
    if (plan.packs_value) value.pack(false);
    for (int64_t row = 0; row < all_rows; row += plan.rows)
      attend_unit(run, key, value, row, std::min(plan.rows, all_rows - row), *workspace);
    workspaces.give_back(std::move(workspace));
  });
}

}  // namespace dynq
