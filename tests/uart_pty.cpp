// A board's UART pins behind a pseudo-terminal: prints its name, then runs until it is ended.
// CYCLES is the number of clock cycles a bit; an argument makes the host's bits so many times as long.
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>
#include <vector>
#include "Vboard.h"

double sc_time_stamp() { return 0; }

int main(int count, char** arguments) {
  const double period = CYCLES * (count > 1 ? atof(arguments[1]) : 1.0);
  const int host = posix_openpt(O_RDWR | O_NOCTTY);
  grantpt(host);
  unlockpt(host);
  // An end that stays open: else reading fails until somebody else opens it.
  const int other = open(ptsname(host), O_RDWR | O_NOCTTY);
  termios settings;
  tcgetattr(other, &settings);
  cfmakeraw(&settings);
  tcsetattr(other, TCSANOW, &settings);
  fcntl(host, F_SETFL, O_NONBLOCK);
  puts(ptsname(host));
  fflush(stdout);

  Vboard board;
  board.rst = 0;
  board.rx = 1;
  unsigned char in[4096];
  std::vector<unsigned char> out;
  ssize_t there = 0, taken = 0;
  unsigned sending = 0, receiving = 0;
  int bits_left = 0, bit = -1;
  double next_in = 0, next_out = 0, now = 0;
  long idle = 0;
  for (;;) {
    if (taken == there) {
      there = read(host, in, sizeof in);
      taken = 0;
      if (there < 0) there = 0;
    }
    idle = there == taken && bits_left == 0 && bit < 0 ? idle + 1 : 0;
    for (int k = 0; k < 256; k++, now += 1) {
      if (bits_left == 0 && taken < there) {
        sending = in[taken++] << 1 | 1u << 9;
        bits_left = 10;
        next_in = now;
      }
      if (bits_left > 0 && now >= next_in) {
        board.rx = sending & 1;
        sending >>= 1;
        next_in += period;
        if (--bits_left == 0) {
          // The stop bit is on the line now; the next start bit may follow it at once.
          bits_left = -1;
        }
      } else if (bits_left < 0 && now >= next_in) {
        bits_left = 0;
      }
      board.clk = 1;
      board.eval();
      board.clk = 0;
      board.eval();
      if (bit < 0) {
        if (!board.tx) {
          bit = 0;
          receiving = 0;
          next_out = now + period * 1.5;
        }
      } else if (now >= next_out) {
        next_out += period;
        if (bit < 8) {
          receiving |= board.tx << bit++;
        } else {
          if (board.tx) out.push_back(receiving);
          bit = -1;
        }
      }
    }
    for (size_t at = 0; at < out.size();) {
      const ssize_t done = write(host, out.data() + at, out.size() - at);
      if (done > 0) at += done; else usleep(100);
    }
    out.clear();
    if (idle > 200) {
      pollfd wait{host, POLLIN, 0};
      poll(&wait, 1, 20);
      if (getppid() == 1) return 0;
    }
  }
}
