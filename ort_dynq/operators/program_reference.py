"""The text on programs in docs/operators.md."""

from __future__ import annotations

from .program import MAX_STEPS, OPERANDS, TAIL_OPERANDS

DOC = f"""\
A program computes the outputs from each row of `src`. A row consists of the elements along the dimensions from `axis`
on. The program is text in the attribute `program`. This one quantizes each row to int8, as torch exports it:

```program
r1 = Div(Clip(ReduceMax(Abs(x)), 1e-05, inf), 127.0)
codes = Clip(Round(Div(x, r1)), -128.0, 127.0)
scale = r1
```

Here, each statement has a line; in the attribute, `;` separates them. A statement gives a name to an expression: a
number, a name, or a step of expressions. A name is given once, before it is used. All values are float32, and each step
is one operation. A value is a vector, with one number for each element of a row, or one number for each row. A program
has at most {MAX_STEPS} steps.

| name | value |
|---|---|
| `x` | `src`: a vector |
| `row1` to `row{OPERANDS}` | `operand_1` to `operand_{OPERANDS}`, if it has one number for each row |
| `column1` to `column{OPERANDS}` | the same, if it has one number for each element of a row: a vector |
| `tensor1` to `tensor{OPERANDS}` | the same, if it has the shape of `src`: a vector |
| `codes`, `dst`, `dst_2` | outputs: they are given vectors. One that is not given has the shape [0]. |
| `zero_point`, `scale`, `number` | outputs: they are given numbers |
| any other | the value of its statement |

`ort-dynq inspect model.onnx --program NODE` prints the program of a node, and what its names are in the model. A
function body has a branch for each program of the model. `ort-dynq inspect --body RowProgram` prints the body for one
program, `dst = x`.

The fake quantization of torchao, with a zero point for each row; `step` is its scale:

```program
low = Min(ReduceMin(x), 0.0)
high = Max(ReduceMax(x), 0.0)
step = Clip(Div(Sub(high, low), 255.0), 1.1754943508222875e-38, inf)
zero = Int8(Clip(Sub(-128.0, Round(Div(low, step))), -128.0, 127.0))
q = Int8(Clip(Add(Round(Mul(x, Reciprocal(step))), zero), -128.0, 127.0))
dst = Mul(Sub(q, zero), step)
```

A residual, LayerNormalization, and the quantization of each row:

```program
sum = Add(x, tensor1)
centered = Sub(sum, Div(ReduceSum(sum), 384.0))
variance = Div(ReduceSum(Mul(centered, centered)), 384.0)
norm = Add(Mul(Mul(centered, Reciprocal(Sqrt(Add(variance, 1e-5)))), column2), column3)
step = Div(Clip(ReduceMax(Abs(norm)), 1e-05, inf), 127.0)
codes = Clip(Round(Div(norm, step)), -128.0, 127.0)
scale = step
dst = norm
```

Products run a program, too: [QuantizedMatMulProgram](#quantizedmatmulprogram) and
[QuantizedConvProgram](#quantizedconvprogram). There, `x` is the result of the product, and there are {TAIL_OPERANDS}
operands. HardSwish, as PaddleOCR exports it, and the sum with a residual, which `tensor1` reads, and its Relu:

```program
dst = Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)
```

```program
dst = Clip(Add(x, tensor1), 0.0, inf)
```

Recurrent layers have programs, too: [QuantizedRecurrence](#quantizedrecurrence) and [WordRecurrence](#wordrecurrence)
run one at each step. Its operands are the gates `tensor1` to `tensor4`, the second state `tensor5`, and `column6` to
`column8`. An LSTM:

```
cell = Add(Mul(Sigmoid(tensor3), tensor5), Mul(Sigmoid(tensor1), Sub(Mul(Sigmoid(Mul(tensor4, 2.0)), 2.0), 1.0)))
dst = Mul(Sigmoid(tensor2), Sub(Mul(Sigmoid(Mul(cell, 2.0)), 2.0), 1.0))
dst_2 = cell
```

A step gives the bits of ONNX Runtime's operator of its name on x86, without optimizations. `Int8`, `Uint8`, `Int32` and
`Float16` are Casts to these types and back. `ReduceSum`, `Sigmoid` and `Gelu` have an arithmetic of their own, which is
the same on every CPU: only [fusions](rules.md#fusions) use them.

| step | result | examples |
|---|---|---|
| `Add(a, b)`, `Sub`, `Mul`, `Div` | Rounded to the nearest float32, ties to even. Never fused with another step. | \
`Add(-0.0, 0.0) = 0.0`, `Mul(inf, 0.0) = nan`, `Div(1.0, -0.0) = -inf` |
| `Sqrt(a)`, `Reciprocal(a)` | Rounded in the same way. `Reciprocal` is 1 / a. | \
`Sqrt(-0.0) = -0.0`, `Sqrt(-1.0) = nan`, `Reciprocal(-0.0) = -inf` |
| `Abs(a)`, `Neg(a)` | Exact. | `Abs(-0.0) = 0.0`, `Neg(0.0) = -0.0` |
| `Sign(a)` | -1, 0 or 1; or NaN. | `Sign(-0.0) = 0.0`, `Sign(nan) = nan` |
| `Round(a)`, `Floor(a)`, `Ceil(a)` | The nearest integer, ties to even; the next one below or above. | \
`Round(2.5) = 2.0`, `Round(-0.5) = -0.0`, `Ceil(-0.5) = -0.0`, `Floor(nan) = nan` |
| `Int8(a)`, `Uint8(a)` | `Round`, then saturated. NaN is 0. Never -0. | \
`Int8(2.5) = 2.0`, `Int8(-0.0) = 0.0`, `Int8(nan) = 0.0`, `Int8(128.0) = 127.0`, `Uint8(-inf) = 0.0` |
| `Int32(a)` | `Round`. NaN and numbers beyond int32 are -2147483648. Never -0. | \
`Int32(3.5) = 4.0`, `Int32(-0.5) = 0.0`, `Int32(nan) = -2147483648.0`, `Int32(3e9) = -2147483648.0` |
| `Float16(a)` | Rounded to float16, ties to even. | \
`Float16(2049.0) = 2048.0`, `Float16(65520.0) = inf`, `Float16(-1e-08) = -0.0` |
| `Max(a, b)`, `Min(a, b)` | NaN if one of them is NaN. Of two zeros, either one. | \
`Max(nan, 1.0) = nan`, `Min(1.0, nan) = nan` |
| `Clip(a, low, high)` | `low` if a < low; then `high` if that is > high; else a. Both bounds are numbers in the text. \
Relu is `Clip(a, 0.0, inf)`. | `Clip(nan, 0.0, 6.0) = nan`, `Clip(-0.0, 0.0, 6.0) = -0.0`, `Clip(1.0, 5.0, 2.0) = 2.0` |
| `LeakyRelu(a, slope)` | slope * a if a < 0, else a. `slope` is a number in the text. | \
`LeakyRelu(-0.0, 0.5) = -0.0`, `LeakyRelu(nan, 0.5) = nan` |
| `PRelu(a, b)` | b * a if a < 0, else a | `PRelu(-0.0, -0.5) = -0.0` |
| `Equal(a, b)`, `Less`, `LessOrEqual`, `Greater`, `GreaterOrEqual` | 1 or 0; 0 if one of them is NaN. | \
`Equal(-0.0, 0.0) = 1.0`, `Equal(nan, nan) = 0.0`, `Less(1.0, nan) = 0.0` |
| `And(c, d)`, `Or(c, d)`, `Not(c)` | 1 or 0, of comparisons. | `And(1.0, 0.0) = 0.0`, `Not(0.0) = 1.0` |
| `Where(c, a, b)` | If the comparison c is 1, a + 0.0, else b. | \
`Where(1.0, -0.0, 1.0) = 0.0`, `Where(0.0, 1.0, -0.0) = -0.0` |
| `ReduceMax(a)`, `ReduceMin(a)` | The largest or the smallest number of a row. A NaN among the first \
11 numbers may hide others, or be the result, as in \
[ONNX Runtime](numerics.md#nan-and-signed-zeros); behind them it is ignored. Without NaN, a zero is the first one of \
the row. Of an empty row: -infinity, infinity. | \
`ReduceMax(nan 1.0) = nan`, `ReduceMax(1.0 nan) = 1.0`, `ReduceMax(-1.0 -0.0 0.0) = -0.0` |
| `ReduceSum(a)` | The sum of a row. Element i is added to partial sum i modulo 32, in order. Then the second half of \
the partial sums is added to the first half, until one is left. Never -0. | `ReduceSum(1.0 2.0 4.0) = 7.0`, \
`ReduceSum(-0.0 -0.0) = 0.0`, `ReduceSum(1.0 nan) = nan` |
| `Sigmoid(a)` | 1 / (1 + e^-a). The error is at most 1e-7. It is not less than 2^-126. | \
`Sigmoid(0.0) = 0.5`, `Sigmoid(inf) = 1.0`, `Sigmoid(nan) = nan` |
| `Gelu(a)` | a / 2 * (1 + erf(a / sqrt(2))), computed as max(a, 0) - t * Phi(-t), where t = abs(a). The error is at \
most 1e-7, or 2 units in the last place. | `Gelu(-0.0) = 0.0`, `Gelu(100.0) = 100.0`, `Gelu(nan) = nan` |
| `codes`, `zero_point` | `Round`, then saturated to the type. NaN is 0. | |
| `dst`, `dst_2` | Rounded once if they are float16. | |
"""
