import type { TestProject } from 'vitest/node';
import { startStack } from './stack.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The stack that end-to-end tests share. Tests that kill a part start their own. */
    stack: { url: string; devDir: string };
  }
}

/** Vitest's global set-up: one stack for all files that kill no part of it. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  // All test files share one address, and many of them send requests that are refused.
  const stack = await startStack({ env: { LIMIT_PUBLIC_PER_MINUTE: '100000' } });
  project.provide('stack', { url: stack.url, devDir: stack.devDir });
  return () => stack.stop();
}
