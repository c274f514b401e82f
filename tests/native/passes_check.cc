// Checks which passes of programs run in kernels of their own (core/program_kernels.h). tests/operators/
// test_pass_kernels.py compares these kernels with the steps.
#include <string>

#include "check.h"
#include "core/program_passes.h"

namespace {

// Programs, and whether a kernel finds the range of x and one quantizes x.
struct ChosenKernels {
  const char* program;
  bool has_range, quantizes;
};

#define RANGE "r = ReduceMax(Abs(x)); s = Div(r, 127.0); "
#define ENDS "a = ReduceMin(x); b = ReduceMax(x); s = Div(Sub(b, a), 255.0); z = Round(Div(a, s)); "
constexpr ChosenKernels kChosenKernels[] = {
    {RANGE "codes = Clip(Round(Div(x, s)), -128.0, 127.0)", true, true},
    {RANGE "codes = Add(Int8(Clip(Round(Div(x, s)), -128.0, 127.0)), 128.0)", true, true},
    {RANGE "codes = Add(Int8(Max(Min(Round(Mul(x, s)), 127.0), -127.0)), 128.0)", true, true},
    {RANGE "codes = Round(Round(Clip(Add(Div(x, s), 0.0), -128.0, 127.0)))", true, true},
    {RANGE "codes = Round(Float16(Div(x, s)))", true, true},
    {RANGE "dst = Mul(Round(Div(x, s)), s)", true, true},
    {RANGE "dst = Div(Clip(Round(Mul(x, s)), -7.0, 7.0), s)", true, true},
    {RANGE "dst = Clip(Round(Div(x, s)), -128.0, 127.0)", true, true},
    {ENDS "codes = Clip(Add(Round(Div(x, s)), Uint8(z)), 0.0, 255.0)", true, true},
    {ENDS "codes = Add(Int8(Add(Round(Mul(x, s)), z)), 128.0)", true, true},
    {ENDS "dst = Mul(Sub(Clip(Add(Round(Div(x, s)), z), 0.0, 255.0), z), s)", true, true},
    {ENDS "dst = Mul(Sub(Uint8(Add(Div(x, s), z)), z), s)", true, true},
    // QuantizeLinear: its code of NaN is the lowest one.
    {ENDS "codes = Add(Int32(Clip(Div(x, s), -32768.0, 32767.0)), z)", true, true},
    {ENDS "dst = Mul(Sub(Int8(Add(Int32(Clip(Div(x, s), -32768.0, 32767.0)), z)), z), s)", true, true},
    {ENDS "codes = Add(Int32(Clip(Div(x, s), -300.0, 300.0)), z)", true, false},
    // A sum before rounding, a step that is not monotonic, a code that is no integer.
    {ENDS "codes = Clip(Round(Add(Div(x, s), z)), 0.0, 255.0)", true, false},
    {RANGE "codes = Abs(Round(Div(x, s)))", true, false},
    {RANGE "codes = Add(Round(Div(x, s)), 0.5)", true, false},
    // The sign of the code 0, and a zero point that stays.
    {ENDS "dst = Mul(Sub(Round(Add(Div(x, s), z)), z), s)", true, false},
    {ENDS "dst = Mul(Sub(Round(Clip(Add(Mul(x, s), z), 0.0, 255.0)), z), s)", true, false},
    {ENDS "dst = Mul(Add(Round(Div(x, s)), z), s)", true, false},
    // Another range, and further results.
    {"s = ReduceMax(x); codes = Round(Div(x, s))", false, true},
    {"codes = Clip(Round(Div(x, row1)), -128.0, 127.0)", false, true},
    {"dst = Mul(Sub(Clip(Add(Round(Mul(x, row1)), row2), 0.0, 255.0), row2), row3)", false, true},
    {RANGE "number = ReduceSum(x); codes = Round(Div(x, s))", false, true},
    {RANGE "codes = Round(Div(x, s)); dst = Mul(Round(Div(x, s)), s)", true, false},
};

}  // namespace

int main() {
  for (const ChosenKernels& expected : kChosenKernels) {
    const dynq::ProgramText text = dynq::parse_program("check", expected.program, 4);
    bool has_range = false, quantizes = false;
    for (const dynq::PlacedPass& pass : dynq::compile_program("check", text, dynq::kUint8, true).passes) {
      has_range |= pass.range.has_value();
      quantizes |= pass.quantization.has_value();
    }
    if (has_range != expected.has_range || quantizes != expected.quantizes)
      fail(std::string(expected.program) + ": kernels for the range: " + std::to_string(has_range) +
           ", for codes: " + std::to_string(quantizes));
  }
}
