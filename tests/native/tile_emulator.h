// Emulates the tile instructions of compiled code on Linux CPUs without AMX: they raise SIGILL, and the handler calls
// the functions of tile_stand_in.h. So the released machine code of amx.cc runs, with the operands and the order that
// the compiler gave the instructions.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include "tile_stand_in.h"

namespace tile_emulator {

// The registers of the ucontext, by their number in an instruction.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// An instruction of three VEX bytes, opcode, ModRM and maybe SIB and displacement.
struct Instruction {
  int prefix, opcode, mod, reg, rm, vvvv;
  int64_t base = 0, index = 0;  // of the address
  int size = 5;

  Instruction(const uint8_t* code, const greg_t* registers) {
    tile_stand_in::require(code[0] == 0xc4 && (code[1] & 31) == 2 && (code[2] & 0x84) == 0, "a tile instruction");
    const int r = (~code[1] >> 7 & 1) << 3, x = (~code[1] >> 6 & 1) << 3, b = (~code[1] >> 5 & 1) << 3;
    prefix = code[2] & 3;  // 0: none, 1: 66, 2: F3, 3: F2
    vvvv = ~code[2] >> 3 & 15;
    opcode = code[3];
    mod = code[4] >> 6;
    reg = (code[4] >> 3 & 7) | r;
    rm = (code[4] & 7) | b;
    if (mod == 3) return;
    const auto value = [&](int number) { return static_cast<int64_t>(registers[kRegisters[number]]); };
    bool is_absolute = false;
    if ((rm & 7) == 4) {
      const int sib = code[size++], at = (sib >> 3 & 7) | x, from = (sib & 7) | b;
      if (at != 4) index = value(at) << (sib >> 6);
      is_absolute = mod == 0 && (from & 7) == 5;
      if (!is_absolute) base = value(from);
    } else if (mod == 0 && (rm & 7) == 5) {  // relative to the next instruction
      size += 4;
      base = reinterpret_cast<int64_t>(code) + size + load32(code + 5);
      return;
    } else {
      base = value(rm);
    }
    if (mod == 1) base += static_cast<int8_t>(code[size++]);
    if (mod == 2 || is_absolute) base += load32(code + size), size += 4;
  }

  static int32_t load32(const uint8_t* from) {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};

inline void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction i(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  void* at = reinterpret_cast<void*>(i.base);
  switch (i.opcode << 8 | i.prefix << 4 | (i.mod == 3)) {
    case 0x4900:  // LDTILECFG
      tile_stand_in::load_configuration(reinterpret_cast<const void*>(i.base + i.index));
      break;
    case 0x4901:  // TILERELEASE
      tile_stand_in::release();
      break;
    case 0x4910:  // STTILECFG
      tile_stand_in::store_configuration(reinterpret_cast<void*>(i.base + i.index));
      break;
    case 0x4931:
      tile_stand_in::zero(i.reg);
      break;
    case 0x4b30:  // TILELOADD
      tile_stand_in::load(i.reg, at, i.index);
      break;
    case 0x4b20:  // TILESTORED
      tile_stand_in::store(i.reg, at, i.index);
      break;
    case 0x5e11:  // TDPBUSD
      tile_stand_in::add_product<uint8_t>(i.reg, i.rm, i.vvvv);
      break;
    case 0x5e31:  // TDPBSSD
      tile_stand_in::add_product<int8_t>(i.reg, i.rm, i.vvvv);
      break;
    default:
      tile_stand_in::require(false, "an instruction that the emulator knows");
  }
  registers[REG_RIP] += i.size;
}

inline void install() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace tile_emulator
