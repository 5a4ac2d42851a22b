// The fault reporter: what it says, when it is silent, and that the fault goes on to who was there.
#include "src/memory/fault_reporter.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/base/align.h"
#include "src/memory/address_arena.h"
#include "src/memory/frame_pool.h"
#include "tests/src/memory/child.h"

namespace zerohold::memory {
namespace {

using base::kFrameBytes;
using base::kPageBytes;
using testing::ExitedWithCode;
using testing::HasSubstr;
using testing::KilledBySignal;

constexpr char kLine[] =
    "zerohold: parameter w of unit block.3 is not acquired; call Acquire(block.3) before touching "
    "it\n";

FaultMap::Entry EntryAt(char* begin, int64_t bytes, const std::string& parameter = "w") {
  return {begin, bytes, parameter, "block.3",
          "is not acquired; call Acquire(block.3) before touching it"};
}

std::string Explanation(const FaultMap& map, const char* address) {
  std::array<char, 1024> line;
  return std::string(line.data(), map.Explain(address, line));
}

TEST(FaultMap, NamesWhatLiesAtTheAddress) {
  std::array<char, 100> memory;
  const FaultMap map(
      {EntryAt(&memory[60], 20, "c"), EntryAt(&memory[10], 20), EntryAt(&memory[30], 10, "b")});
  EXPECT_EQ(Explanation(map, &memory[10]), kLine);
  EXPECT_EQ(Explanation(map, &memory[29]), kLine);
  EXPECT_THAT(Explanation(map, &memory[30]), HasSubstr("parameter b of"));
  EXPECT_THAT(Explanation(map, &memory[79]), HasSubstr("parameter c of"));
  for (const int outside : {0, 9, 40, 59, 80}) EXPECT_EQ(Explanation(map, &memory[outside]), "");
  EXPECT_EQ(Explanation(map, nullptr), "");
  EXPECT_EQ(Explanation(FaultMap({}), &memory[10]), "");
}

TEST(FaultMap, ShortensWhatDoesNotFit) {
  std::array<char, 8> memory;
  const FaultMap map({EntryAt(memory.data(), 8, std::string(5000, 'p'))});
  const std::string text = Explanation(map, memory.data());
  EXPECT_EQ(text.size(), 1024u);
  EXPECT_EQ(text.back(), '\n');
  std::array<char, 26> small;
  EXPECT_EQ(std::string(small.data(), map.Explain(memory.data(), small)),
            "zerohold: parameter ppppp\n");
}

TEST(FaultMap, TellsAChildWhoseMemoryItIs) {
  std::array<char, 8> memory;
  const FaultMap map({EntryAt(memory.data(), 8)});
  EXPECT_EQ(InChild([&] { return Explanation(map, memory.data()); }),
            "zerohold: parameter w of unit block.3 belongs to process " + std::to_string(getpid()) +
                ", which forked this one; use it there, or copy it before the fork\n");
}

// Each test below runs in a process of its own, started anew: the handler is for good.
class FaultReporterDeathTest : public testing::Test {
 protected:
  FaultReporterDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  volatile char* page() { return page_; }
  FaultMap::Entry entry() { return EntryAt(page_, kPageBytes); }

 private:
  char* page_ =
      static_cast<char*>(mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

void Handle(void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  sigaction(SIGSEGV, &action, nullptr);
}

void MakeAccessible(int, siginfo_t* info, void*) {
  mprotect(info->si_addr, 1, PROT_READ | PROT_WRITE);
}

TEST_F(FaultReporterDeathTest, ExplainsATouchOfReleasedFrames) {
  Ledger ledger;
  const auto pool = FramePool::CreatePrivate(kFrameBytes, MemoryKind::kParameters, &ledger).value();
  const AddressArena arena =
      AddressArena::Reserve(kFrameBytes, MemoryKind::kParameters, &ledger).value();
  const Extent extent{0, kFrameBytes};
  const FaultMap map({EntryAt(arena.base(), 1000)});
  ASSERT_TRUE(pool->Attach(extent, arena.base()).ok());
  arena.base()[999] = 1;
  ASSERT_TRUE(pool->Detach(extent, arena.base()).ok());
  volatile char* const touched = arena.base();
  EXPECT_DEATH(
      {
        static_cast<void>(InstallFaultReporter());
        touched[999] = 1;
      },
      HasSubstr(kLine));
}

TEST_F(FaultReporterDeathTest, LeavesTheDefaultActionAsItIs) {
  const FaultMap map({entry()});
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);  // also where a sanitizer has its own
        static_cast<void>(InstallFaultReporter());
        page()[0] = 1;
      },
      KilledBySignal(SIGSEGV), HasSubstr(kLine));
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_IGN);  // which the kernel overrules
        static_cast<void>(InstallFaultReporter());
        page()[0] = 1;
      },
      KilledBySignal(SIGSEGV), HasSubstr(kLine));
}

TEST_F(FaultReporterDeathTest, CallsTheHandlerThatWasThere) {
  const FaultMap map({entry()});
  EXPECT_EXIT(
      {
        Handle(
            [](int, siginfo_t* info, void*) {
              std::fprintf(stderr, "before us: %p", info->si_addr);
              _exit(3);
            },
            0);
        static_cast<void>(InstallFaultReporter());
        static_cast<void>(InstallFaultReporter());  // once is enough
        std::fprintf(stderr, "touch: %p\n", static_cast<void*>(const_cast<char*>(page())));
        page()[0] = 1;
      },
      ExitedWithCode(3), testing::MatchesRegex("touch: (.*)\nzerohold: [^\n]*\nbefore us: (.*)"));
  EXPECT_EXIT(
      {
        signal(SIGSEGV, [](int number) { _exit(number == SIGSEGV ? 4 : 5); });
        static_cast<void>(InstallFaultReporter());
        page()[0] = 1;
      },
      ExitedWithCode(4), HasSubstr(kLine));
}

TEST_F(FaultReporterDeathTest, ReturnsToTheInstructionWhenAHandlerMends) {
  const FaultMap map({entry()});
  EXPECT_EXIT(
      {
        Handle(MakeAccessible, 0);
        static_cast<void>(InstallFaultReporter());
        page()[0] = 6;
        _exit(page()[0]);
      },
      ExitedWithCode(6), HasSubstr(kLine));
}

// Without its flag the handler would be called for ever.
TEST_F(FaultReporterDeathTest, CallsAOneTimeHandlerOneTime) {
  EXPECT_EXIT(
      {
        Handle([](int, siginfo_t*, void*) { std::fprintf(stderr, "once"); },
               static_cast<int>(SA_RESETHAND));
        static_cast<void>(InstallFaultReporter());
        page()[0] = 1;
      },
      KilledBySignal(SIGSEGV), "^once$");
}

TEST_F(FaultReporterDeathTest, IsSilentAboutWhatItDoesNotKnow) {
  const auto dies_silently = [&](bool by_instruction) {
    signal(SIGSEGV, SIG_DFL);
    static_cast<void>(InstallFaultReporter());
    if (by_instruction) page()[0] = 1;
    raise(SIGSEGV);
  };
  std::make_unique<FaultMap>(std::vector{entry()}).reset();
  EXPECT_EXIT(dies_silently(true), KilledBySignal(SIGSEGV), "^$");
  const FaultMap map({entry()});
  EXPECT_EXIT(dies_silently(false), KilledBySignal(SIGSEGV), "^$");  // sent, not a fault
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_IGN);
        static_cast<void>(InstallFaultReporter());
        raise(SIGSEGV);
        _exit(7);
      },
      ExitedWithCode(7), "^$");
}

TEST_F(FaultReporterDeathTest, MapsComeAndGoWhileOthersFault) {
  EXPECT_EXIT(
      {
        Handle(MakeAccessible, 0);
        static_cast<void>(InstallFaultReporter());
        std::atomic<bool> done{false};
        std::atomic<int> maps{0};
        std::vector<std::thread> registrars;
        for (int i = 0; i < 2; ++i) {
          registrars.emplace_back([&] {
            for (; !done; ++maps) {
              const FaultMap map({entry()});
              if (maps % 64 == 0)
                std::this_thread::yield();  // on one core too, somebody faults now
            }
          });
        }
        for (int i = 0; i < 2000 || maps < 20000; ++i) {
          mprotect(const_cast<char*>(page()), 1, PROT_NONE);
          page()[0] = 1;
        }
        done = true;
        for (std::thread& registrar : registrars) registrar.join();
        _exit(8);
      },
      ExitedWithCode(8), HasSubstr(kLine));
}

// More than there is room for are not heard of, and room comes back.
TEST_F(FaultReporterDeathTest, RoomIsGivenBack) {
  std::vector<std::unique_ptr<FaultMap>> maps;
  for (int i = 0; i < 2 * FaultMap::kMaxMaps; ++i) {
    maps.push_back(std::make_unique<FaultMap>(std::vector<FaultMap::Entry>()));
  }
  maps.clear();
  for (int i = 1; i < FaultMap::kMaxMaps; ++i) {
    maps.push_back(std::make_unique<FaultMap>(std::vector<FaultMap::Entry>()));
  }
  const FaultMap last({entry()});
  EXPECT_DEATH(
      {
        static_cast<void>(InstallFaultReporter());
        page()[0] = 1;
      },
      HasSubstr(kLine));
}

}  // namespace
}  // namespace zerohold::memory
