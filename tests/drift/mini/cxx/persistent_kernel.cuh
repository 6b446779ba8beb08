// The mini-checkout's scheduler: forms batches of requests, gives pages to them, takes pages back.
#pragma once

#ifdef MODE_OFFLINE
__device__ __forceinline__ bool
    prepare_next_batch(RuntimeConfig const &config) {
  int head = *config.page_queue_head, tail = *config.page_queue_tail;
  // What each slot did in the last batch.
  for (int slot = 0; slot < MPK_MAX_NUM_BATCHED_REQUESTS; slot++) {
    int request = config.request_ids[slot];
    if (request < 0) {
      continue;
    }
    int done = config.qo_indptr_buffer[slot + 1] - config.qo_indptr_buffer[slot];
    int step = config.step[request];
    if (step + done >= config.prompt_length[request] &&
        step + done < MPK_MAX_SEQ_LENGTH) {
      config.tokens[request * MPK_MAX_SEQ_LENGTH + step + done] =
          config.output_tokens[config.qo_indptr_buffer[slot + 1] - 1];
    }
    config.step[request] = step + done;
    if (step + done + 1 >= config.max_seq_length) {
      config.request_ids[slot] = -1;
      for (int i = config.paged_kv_indptr_buffer[slot];
           i < config.paged_kv_indptr_buffer[slot + 1];
           i++) {
        config.page_queue[tail++ % MPK_MAX_NUM_PAGES] =
            config.paged_kv_indices_buffer[i];
      }
    }
  }
  int const total = config.paged_kv_indptr_buffer[MPK_MAX_NUM_BATCHED_REQUESTS];
  for (int i = 0; i < total; i++) {
    config.paged_kv_indices_snapshot[i] = config.paged_kv_indices_buffer[i];
  }
  // Requests that go on move to the front; new ones fill up behind them.
  int active = 0, tokens = 0, pages = 0;
  for (int slot = 0; slot < 2 * MPK_MAX_NUM_BATCHED_REQUESTS; slot++) {
    bool const fresh = slot >= MPK_MAX_NUM_BATCHED_REQUESTS;
    int request = -1, kept = 0, from = 0;
    if (!fresh) {
      request = config.request_ids[slot];
      if (request < 0) {
        continue;
      }
      from = config.paged_kv_indptr_buffer[slot];
      kept = config.paged_kv_indptr_buffer[slot + 1] - from;
    } else {
      if (active >= MPK_MAX_NUM_BATCHED_REQUESTS ||
          tokens >= MPK_MAX_NUM_BATCHED_TOKENS ||
          *config.next_request_id >= config.total_num_requests) {
        break;
      }
      request = (*config.next_request_id)++;
    }
    int const step = config.step[request];
    int wanted = config.prompt_length[request] - step;
    wanted = wanted > 0 ? wanted : 1;
    int const room = MPK_MAX_NUM_BATCHED_TOKENS - tokens;
    int const taken = wanted < room ? wanted : room;
    for (int i = 0; i < taken; i++) {
      config.input_tokens[tokens + i] =
          config.tokens[request * MPK_MAX_SEQ_LENGTH + step + i];
    }
    int const length = step + taken;
    int const needed = (length + MPK_PAGE_SIZE - 1) / MPK_PAGE_SIZE;
    int const rest = length % MPK_PAGE_SIZE;
    config.request_ids[active] = request;
    config.qo_indptr_buffer[active] = tokens;
    config.paged_kv_indptr_buffer[active] = pages;
    config.paged_kv_last_page_len_buffer[active] = rest == 0 ? MPK_PAGE_SIZE : rest;
    for (int i = 0; i < needed; i++) {
      config.paged_kv_indices_buffer[pages + i] =
          i < kept ? config.paged_kv_indices_snapshot[from + i]
                   : config.page_queue[head++ % MPK_MAX_NUM_PAGES];
    }
    active++;
    tokens += taken;
    pages += needed;
  }
  for (int slot = active; slot < MPK_MAX_NUM_BATCHED_REQUESTS; slot++) {
    config.request_ids[slot] = -1;
  }
  for (int slot = active; slot <= MPK_MAX_NUM_BATCHED_REQUESTS; slot++) {
    config.qo_indptr_buffer[slot] = tokens;
    config.paged_kv_indptr_buffer[slot] = pages;
  }
  *config.page_queue_head = head;
  *config.page_queue_tail = tail;
  return tokens > 0;
}
#else
__device__ __forceinline__ bool
    prepare_next_batch(RuntimeConfig const &config) {
  return false;
}
#endif

#ifdef USE_NVSHMEM
inline void make_teams(int num_teams, nvshmem_team_t *teams) {
  for (int i = 0; i < num_teams; i++) {
    nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, 2, nullptr, 0, &teams[i]);
  }
}
#endif
