import { readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import { LOOPBACK } from '../../../dev/stack/programs.ts';
import { freePort } from '../free-port.ts';
import { freePorts, type Stack, startStack, temporaryFolder } from './stack.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The stack that end-to-end tests share. Tests that kill a part start their own. */
    stack: {
      url: string;
      devDir: string;
      /** Of a GitHub that a test can start. */
      gitHubPort: number;
      /** Answers 200 once the stack runs. The first request starts it. */
      readyUrl: string;
    };
  }
}

/** Vitest's global set-up: one stack for all files that kill no part of it, from the first such file on. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const [gitHubPort, readyPort, ports] = await Promise.all([freePort(), freePort(), freePorts()]);
  const gitHub = `http://${LOOPBACK}:${gitHubPort}`;
  const devDir = temporaryFolder();
  let stack: Promise<Stack> | undefined;
  const starter = createServer(async (_, response) => {
    stack ??= startStack({
      devDir,
      env: {
        ...ports,
        // All test files share one address, and many of them send requests that are refused.
        LIMIT_PUBLIC_PER_MINUTE: '100000',
        // Where tests start databases that projects follow.
        FOLLOW_PRIVATE_NETWORKS: `${LOOPBACK}/32`,
        GITHUB_URL: gitHub,
        GITHUB_API_URL: `${gitHub}/api`,
      },
    });
    const failure = await stack.then(
      () => null,
      (error: Error) => error,
    );
    response.writeHead(failure ? 500 : 200).end(failure?.stack);
  });
  await new Promise<void>((resolve) => starter.listen(readyPort, LOOPBACK, resolve));
  project.provide('stack', {
    url: `http://${LOOPBACK}:${ports.GATEWAY_PORT}`,
    devDir,
    gitHubPort,
    readyUrl: `http://${LOOPBACK}:${readyPort}`,
  });
  return async () => {
    starter.close();
    try {
      const started = await stack;
      if (!started) return;
      // The folder goes with the stack, and a test that failed because of one of these shows only its request
      // id.
      const log = readFileSync(join(devFolder(devDir).logs, 'gateway.log'), 'utf8');
      for (const line of log.split('\n').filter((text) => /"INTERNAL"|uncaught/i.test(text)))
        console.error(line);
      await started.stop();
    } finally {
      rmSync(devDir, { recursive: true, force: true });
    }
  };
}
