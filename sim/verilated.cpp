// The compiled board behind a small C interface, called once a command and not once a cycle.
//
// Bytes are queued for the board with board_push, board_run ticks its clock until it has nothing
// left to do, board_pull takes the bytes that it sent. Both byte streams may stall at random: a
// byte is offered, or taken, in a cycle with a given probability only.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "Vboard.h"
#include "verilated.h"

namespace {

// Cycles without work after which the board is taken to be idle: `active` is registered.
constexpr int kSettle = 8;

struct Board {
    VerilatedContext context;
    Vboard top{&context};
    std::deque<uint8_t> to_board;
    std::vector<uint8_t> from_board;
    uint64_t cycles = 0;
    uint64_t state;      // of the generator of stalls
    uint32_t stall_in;   // probability of a stall in 1/65536
    uint32_t stall_out;
    bool offered = false;  // a byte that is offered stays until it is taken

    Board(uint64_t seed, uint32_t in, uint32_t out)
        : state(seed * 2654435769u + 88172645463325252u), stall_in(in), stall_out(out) {}

    bool stalls(uint32_t probability) {
        if (probability == 0) return false;
        state ^= state << 13;  // Marsaglia's xorshift64
        state ^= state >> 7;
        state ^= state << 17;
        return ((state >> 24) & 0xffff) < probability;
    }

    // One clock cycle; true if the board did anything, or may have.
    bool tick() {
        if (!offered && !to_board.empty()) offered = !stalls(stall_in);
        top.i___05Fvalid = offered;
        top.i___05Fpayload = offered ? to_board.front() : 0;
        top.o___05Fready = !stalls(stall_out);
        top.clk = 0;
        top.eval();
        const bool taken = offered && top.i___05Fready;
        const bool sent = top.o___05Fvalid;
        if (sent && top.o___05Fready) from_board.push_back(top.o___05Fpayload);
        if (taken) {
            to_board.pop_front();
            offered = false;
        }
        const bool busy = top.active || sent || !to_board.empty();
        top.clk = 1;
        top.eval();
        cycles++;
        return busy;
    }
};

}  // namespace

extern "C" {

// `stall_in`, `stall_out`: probabilities in 1/65536.
void* board_new(uint64_t seed, uint32_t stall_in, uint32_t stall_out) {
    auto* board = new Board(seed, stall_in, stall_out);
    board->top.rst = 1;
    for (int k = 0; k < 4; k++) board->tick();
    board->top.rst = 0;
    board->cycles = 0;
    return board;
}

void board_delete(void* handle) { delete static_cast<Board*>(handle); }

// Pulse the reset input for a cycle; bytes on their way to the board are dropped.
void board_reset(void* handle) {
    auto* board = static_cast<Board*>(handle);
    board->to_board.clear();
    board->offered = false;
    board->top.rst = 1;
    board->tick();
    board->top.rst = 0;
}

void board_push(void* handle, const uint8_t* bytes, size_t count) {
    auto& queue = static_cast<Board*>(handle)->to_board;
    queue.insert(queue.end(), bytes, bytes + count);
}

// Tick until the board is idle, at most `limit` cycles; 1 if it is idle.
int board_run(void* handle, uint64_t limit) {
    auto* board = static_cast<Board*>(handle);
    int quiet = 0;
    for (uint64_t k = 0; k < limit; k++) {
        quiet = board->tick() ? 0 : quiet + 1;
        if (quiet == kSettle) return 1;
    }
    return 0;
}

// Take at most `room` bytes that the board sent.
size_t board_pull(void* handle, uint8_t* into, size_t room) {
    auto& sent = static_cast<Board*>(handle)->from_board;
    const size_t count = sent.size() < room ? sent.size() : room;
    std::memcpy(into, sent.data(), count);
    sent.erase(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
}

uint64_t board_cycles(void* handle) { return static_cast<Board*>(handle)->cycles; }
}
