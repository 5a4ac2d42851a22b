// The answer to one Move, which a test waits for.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <future>

#include "offload/io/mover.h"

namespace zerohold::io {

class Answer {
 public:
  // The request with its answer sent here; this object outlives the answer.
  Mover::Request To(Mover::Request request) {
    request.context = this;
    request.done = [](void* context, absl::Status status) {
      static_cast<Answer*>(context)->promise_.set_value(std::move(status));
    };
    return request;
  }
  bool arrived() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // Blocking, for at most 30 s.
  absl::Status Get() {
    if (future_.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      return absl::InternalError("no answer");
    }
    return future_.get();
  }

 private:
  std::promise<absl::Status> promise_;
  std::future<absl::Status> future_ = promise_.get_future();
};

// Moves and waits.
inline absl::Status MoveNow(Mover& mover, const Mover::Request& request) {
  Answer answer;
  mover.Move(answer.To(request));
  return answer.Get();
}

}  // namespace zerohold::io
