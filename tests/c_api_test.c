/* The C API from C: texts, errors, buffers, threads of sessions. Each check ends the program where it fails. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gyre.h"

#define CHECK(condition)                                                                                 \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, gyre_error_message()); \
      exit(1);                                                                                           \
    }                                                                                                    \
  } while (0)

enum { kRoom = 4096 };

static bool IsWholeUtf8(const char* text) {
  const unsigned char* at = (const unsigned char*)text;
  while (*at != 0) {
    const int more = *at < 0x80 ? 0 : *at < 0xC2 ? -1 : *at < 0xE0 ? 1 : *at < 0xF0 ? 2 : *at < 0xF5 ? 3 : -1;
    if (more < 0) return false;
    ++at;
    for (int i = 0; i < more; ++i, ++at) {
      if ((*at & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

/* The whole text of a session, read with a buffer of `size` bytes; returns the number of tokens. */
static int ReadAll(gyre_session* session, int size, char* all) {
  char* text = malloc((size_t)size);
  CHECK(text != NULL);
  int error = 0, index = -1, last = -1;
  all[0] = '\0';
  for (;;) {
    const bool more = gyre_next_token(session, text, size, &index, &error);
    if (!more) break;
    CHECK(error == GYRE_OK);
    CHECK(index == last || index == last + 1);
    last = index;
    CHECK((int)strlen(text) < size);
    CHECK(IsWholeUtf8(text));
    CHECK(strlen(all) + strlen(text) < kRoom);
    strcat(all, text);
  }
  CHECK(error == GYRE_OK);
  free(text);
  return last + 1;
}

static void Continue(gyre_model* model, const char* prompt, float temperature, uint64_t seed, int size, char* all) {
  int error = -1;
  gyre_session* session = gyre_start(model, prompt, 40, temperature, 0, 0, seed, &error);
  CHECK(session != NULL && error == GYRE_OK);
  CHECK(ReadAll(session, size, all) <= 40);
  gyre_free(session);
}

struct Job {
  gyre_model* model;
  char text[kRoom];
};

static void* Run(void* argument) {
  struct Job* job = argument;
  Continue(job->model, "Once upon a time", 0, 1, 64, job->text);
  return NULL;
}

static void TestTexts(gyre_model* model) {
  char first[kRoom], second[kRoom];
  Continue(model, "Once upon a time", 0, 1, 256, first);
  CHECK(strlen(first) > 20);
  Continue(model, "Once upon a time", 0, 2, 5, second); /* a character or little more at a time */
  CHECK(strcmp(first, second) == 0);
  Continue(model, "Once upon a time", 0.7f, 11, 256, first);
  Continue(model, "Once upon a time", 0.7f, 11, 256, second);
  CHECK(strcmp(first, second) == 0);
  Continue(model, "Once upon a time", 0.7f, 12, 256, second);
  CHECK(strcmp(first, second) != 0);
}

/* The texts of a grammar, and what is no grammar. */
static void TestGrammars(gyre_model* model) {
  int error = -1;
  char text[kRoom];
  gyre_grammar grammar = {.struct_size = sizeof grammar,
                          .json_schema =
                              "{\"type\": \"object\", \"properties\": {\"name_of_it\": {\"enum\": [7]}}, "
                              "\"required\": [\"name_of_it\"], \"additionalProperties\": false}",
                          .compact_json = true};
  for (int jump = 0; jump < 2; ++jump) {
    grammar.no_jump_ahead = jump == 0;
    gyre_session* session = gyre_start_grammar(model, "JSON: ", &grammar, 200, 0, 0, 0, 1, &error);
    CHECK(session != NULL && error == GYRE_OK);
    ReadAll(session, 256, text);
    CHECK(strncmp(text, "{\"name_of_it\":7", 15) == 0);
    CHECK(text[strlen(text) - 1] == '}');
    gyre_free(session);
  }
  grammar = (gyre_grammar){.struct_size = sizeof grammar, .regex = "(yes|no)!"};
  gyre_session* session = gyre_start_grammar(model, "Is it?", &grammar, 20, 1, 0, 0, 1, &error);
  ReadAll(session, 256, text);
  CHECK(strcmp(text, "yes!") == 0 || strcmp(text, "no!") == 0);
  gyre_free(session);
  grammar = (gyre_grammar){.struct_size = sizeof grammar, .gbnf = "root ::= \"a\" \"b\"+ \"c\"\n"};
  session =
      gyre_start_chat_grammar(model, "[{\"role\": \"user\", \"content\": \"Hi\"}]", &grammar, 500, 1, 0, 0, 1, &error);
  ReadAll(session, 256, text);
  CHECK(strncmp(text, "ab", 2) == 0);
  gyre_free(session);

  gyre_grammar wrong[] = {
      {.struct_size = sizeof grammar},
      {.struct_size = sizeof grammar, .regex = "a", .gbnf = "root ::= \"a\"\n"},
      {.struct_size = 100000, .regex = "a"},
      {.struct_size = sizeof grammar, .regex = "(a"},
      {.struct_size = sizeof grammar, .json_schema = "{\"uniqueItems\": true, \"type\": \"array\"}"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    CHECK(gyre_start_grammar(model, "a", &wrong[i], 4, 0, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
    CHECK(strlen(gyre_error_message()) > 0);
  }
}

/* All settings by their names, and the old functions as a special case of them. */
static void TestRequests(gyre_model* model) {
  int error = -1;
  char text[kRoom], expected[kRoom];
  size_t names = 0;
  bool min_p = false, last_n = false;
  for (; gyre_setting_name(names) != NULL; ++names) {
    min_p = min_p || strcmp(gyre_setting_name(names), "min_p") == 0;
    last_n = last_n || strcmp(gyre_setting_name(names), "repeat_last_n") == 0;
  }
  CHECK(names >= 8 && min_p && last_n);
  CHECK(gyre_setting_name((size_t)-1) == NULL);

  const gyre_setting like_start[] = {{"temperature", 0.7f}, {"top_k", 50}, {"top_p", 0.95f}, {"min_p", 0}};
  gyre_request request = {.struct_size = sizeof request,
                          .prompt = "Once upon a time",
                          .settings = like_start,
                          .num_settings = 4,
                          .max_tokens = 40,
                          .seed = 11};
  Continue(model, "Once upon a time", 0.7f, 11, 256, expected);
  gyre_session* session = gyre_start_request(model, &request, &error);
  CHECK(session != NULL && error == GYRE_OK);
  ReadAll(session, 256, text);
  CHECK(strcmp(text, expected) == 0);
  gyre_free(session);
  /* A setting that the old functions do not have. */
  const gyre_setting greedy[] = {{"temperature", 0}}, repelled[] = {{"temperature", 0}, {"frequency_penalty", 2}};
  request.settings = greedy;
  request.num_settings = 1;
  session = gyre_start_request(model, &request, &error);
  ReadAll(session, 256, expected);
  gyre_free(session);
  request.settings = repelled;
  request.num_settings = 2;
  session = gyre_start_request(model, &request, &error);
  ReadAll(session, 256, text);
  CHECK(strcmp(text, expected) != 0);
  gyre_free(session);
  /* The names and the values that docs/api.md has: -1 takes all tokens, as 0 does. */
  const gyre_setting all[] = {{"temperature", 0.7}, {"top_k", 0}, {"repetition_penalty", 1.5}, {"penalty_last_n", 3}};
  const gyre_setting same[] = {{"temperature", 0.7}, {"top_k", -1}, {"repeat_penalty", 1.5}, {"repeat_last_n", 3}};
  request.num_settings = 4;
  request.settings = all;
  session = gyre_start_request(model, &request, &error);
  ReadAll(session, 256, expected);
  gyre_free(session);
  request.settings = same;
  session = gyre_start_request(model, &request, &error);
  CHECK(session != NULL && error == GYRE_OK);
  ReadAll(session, 256, text);
  CHECK(strcmp(text, expected) == 0);
  gyre_free(session);
  /* A conversation with a grammar. A caller with an older header has fewer fields. */
  const gyre_grammar grammar = {.struct_size = sizeof grammar, .regex = "(yes|no)!"};
  gyre_request chat = {.struct_size = offsetof(gyre_request, settings),
                       .messages = "[{\"role\": \"user\", \"content\": \"Hi\"}]",
                       .grammar = &grammar,
                       .num_settings = 1000};
  session = gyre_start_request(model, &chat, &error);
  CHECK(session != NULL && error == GYRE_OK);
  ReadAll(session, 256, text);
  CHECK(strcmp(text, "yes!") == 0 || strcmp(text, "no!") == 0);
  gyre_free(session);

  const gyre_setting unknown[] = {{"heat", 1}}, nameless[] = {{NULL, 1}}, beyond[] = {{"top_p", 1.5}},
                     part[] = {{"top_k", 1.5}}, tiny[] = {{"top_p", 1e-60}}, no_number[] = {{"min_p", 0.0 / 0.0}};
  const gyre_setting* wrong[] = {unknown, nameless, beyond, part, tiny, no_number, NULL};
  const char* said[] = {"\"heat\"", "\"\"", "top_p is 1.5", "whole number", "top_p is 1e-60", "min_p is", "is null"};
  request.num_settings = 1;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    request.settings = wrong[i];
    CHECK(gyre_start_request(model, &request, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
    CHECK(strstr(gyre_error_message(), said[i]) != NULL);
  }
  request.num_settings = 0;
  request.messages = chat.messages;
  CHECK(gyre_start_request(model, &request, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  request.messages = request.prompt = NULL;
  CHECK(gyre_start_request(model, &request, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  request.prompt = "a";
  request.struct_size = 100000;
  CHECK(gyre_start_request(model, &request, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_start_request(model, NULL, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
}

static void TestErrors(gyre_model* model, const char* path) {
  int error = -1;
  CHECK(gyre_load("/no/such/file.gguf", NULL, &error) == NULL && error == GYRE_NOT_FOUND);
  CHECK(strlen(gyre_error_message()) > 0);
  /* A file that is empty, and one that is no model. */
  char other[] = "/tmp/gyre-c-api-XXXXXX";
  const int fd = mkstemp(other);
  CHECK(fd >= 0);
  CHECK(gyre_load(other, NULL, &error) == NULL && error == GYRE_BAD_MODEL);
  CHECK(write(fd, "Once upon a time there was a text.\n", 35) == 35);
  CHECK(gyre_load(other, NULL, &error) == NULL && error == GYRE_BAD_MODEL);
  CHECK(close(fd) == 0 && unlink(other) == 0);
  CHECK(gyre_load(NULL, NULL, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_load("/no/such/file.gguf", NULL, NULL) == NULL);
  gyre_options options = {.struct_size = sizeof options, .kv_type = "f13"};
  CHECK(gyre_load(path, &options, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  options = (gyre_options){.struct_size = 100000};
  CHECK(gyre_load(path, &options, &error) == NULL && error == GYRE_INVALID_ARGUMENT);

  CHECK(gyre_start(NULL, "a", 1, 0, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_start(model, NULL, 1, 0, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_start(model, "a", 1, 2.5f, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_start(model, "a", 1, 0, 0, 1.5f, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  CHECK(gyre_start_chat(model, "no JSON", 1, 0, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  char* endless = malloc(1 << 20);
  memset(endless, 'x', (1 << 20) - 1);
  endless[(1 << 20) - 1] = '\0';
  CHECK(gyre_start(model, endless, 1, 0, 0, 0, 0, &error) == NULL && error == GYRE_INVALID_ARGUMENT);
  free(endless);

  gyre_session* session = gyre_start(model, "Once", 8, 0, 0, 0, 0, &error);
  CHECK(session != NULL);
  char text[64];
  int index = -1;
  CHECK(!gyre_next_token(session, NULL, 64, &index, &error) && error == GYRE_INVALID_ARGUMENT);
  CHECK(!gyre_next_token(session, text, 0, &index, &error) && error == GYRE_INVALID_ARGUMENT);
  /* No room for a character: nothing is lost. */
  memset(text, 7, sizeof text);
  bool more = gyre_next_token(session, text, 1, &index, &error);
  CHECK(more || error == GYRE_BUFFER_TOO_SMALL);
  CHECK(text[1] == 7);
  char rest[kRoom];
  int tokens = 0;
  rest[0] = '\0';
  while (gyre_next_token(session, text, sizeof text, &index, &error)) {
    strcat(rest, text);
    tokens = index + 1;
  }
  CHECK(error == GYRE_OK && tokens >= 1 && tokens <= 8);
  char whole[kRoom];
  gyre_session* again = gyre_start(model, "Once", 8, 0, 0, 0, 0, &error);
  ReadAll(again, 64, whole);
  CHECK(strcmp(rest, whole) == 0);
  CHECK(!gyre_next_token(again, text, sizeof text, &index, &error) && error == GYRE_OK); /* ended stays ended */
  gyre_free(again);
  gyre_free(session);
  gyre_free(NULL);
  gyre_model_free(NULL);
  CHECK(!gyre_next_token(NULL, text, 64, &index, &error) && error == GYRE_INVALID_ARGUMENT);

  session = gyre_start(model, "Once", 100, 0, 0, 0, 0, &error);
  CHECK(gyre_next_token(session, text, sizeof text, &index, &error));
  gyre_cancel(session);
  CHECK(!gyre_next_token(session, text, sizeof text, &index, &error) && error == GYRE_CANCELLED);
  gyre_free(session);
  session = gyre_start(model, "Once", 100, 0, 0, 0, 0, &error); /* freed while it runs */
  gyre_free(session);
  CHECK(strcmp(gyre_error_name(GYRE_OUT_OF_MEMORY), "out of memory") == 0);
  CHECK(strlen(gyre_error_name(12345)) > 0 && strlen(gyre_version()) > 0);
}

int main(int count, char** words) {
  CHECK(count == 2);
  int error = -1;
  gyre_options options = {.struct_size = sizeof options, .threads = 1, .parallel = 4};
  gyre_model* model = gyre_load(words[1], &options, &error);
  CHECK(model != NULL && error == GYRE_OK);
  TestTexts(model);
  TestGrammars(model);
  TestRequests(model);
  TestErrors(model, words[1]);

  struct Job jobs[4];
  pthread_t threads[4];
  char alone[kRoom];
  Continue(model, "Once upon a time", 0, 1, 64, alone);
  for (int i = 0; i < 4; ++i) {
    jobs[i].model = model;
    CHECK(pthread_create(&threads[i], NULL, Run, &jobs[i]) == 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(strcmp(jobs[i].text, alone) == 0);
  }

  /* A session outlives its model's handle. */
  gyre_session* session = gyre_start(model, "Once upon a time", 40, 0, 0, 0, 1, &error);
  gyre_model_free(model);
  char text[kRoom];
  ReadAll(session, 64, text);
  CHECK(strcmp(text, alone) == 0);
  gyre_free(session);
  puts("the C API does what gyre.h says");
  return 0;
}
