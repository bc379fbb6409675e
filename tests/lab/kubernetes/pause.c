/* What a pod's sandbox runs: holds its namespaces, reaps orphans, ends when told to. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, NULL, WNOHANG) > 0); }

int main(void) {
  struct sigaction ending = {.sa_handler = end}, reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &ending, NULL);
  sigaction(SIGTERM, &ending, NULL);
  sigaction(SIGCHLD, &reaping, NULL);
  for (;;) pause();
}
