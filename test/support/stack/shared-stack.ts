import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import { freePort } from '../free-port.ts';
import { startStack } from './stack.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The stack that end-to-end tests share. Tests that kill a part start their own. */
    stack: {
      url: string;
      devDir: string;
      /** Of a GitHub that a test can start. */
      gitHubPort: number;
    };
  }
}

/** Vitest's global set-up: one stack for all files that kill no part of it. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const gitHubPort = await freePort();
  const gitHub = `http://127.0.0.1:${gitHubPort}`;
  const stack = await startStack({
    env: {
      // All test files share one address, and many of them send requests that are refused.
      LIMIT_PUBLIC_PER_MINUTE: '100000',
      // Where tests start databases that projects follow.
      FOLLOW_PRIVATE_NETWORKS: '127.0.0.1/32',
      GITHUB_URL: gitHub,
      GITHUB_API_URL: `${gitHub}/api`,
    },
  });
  project.provide('stack', { url: stack.url, devDir: stack.devDir, gitHubPort });
  return async () => {
    // The folder goes with the stack, and a test that failed because of one of these shows only its request
    // id.
    const log = readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8');
    for (const line of log.split('\n').filter((text) => /"INTERNAL"|uncaught/i.test(text)))
      console.error(line);
    await stack.stop();
  };
}
