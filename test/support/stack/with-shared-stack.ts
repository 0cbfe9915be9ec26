import { expect, inject } from 'vitest';

// Vitest runs this before each file. The first end-to-end test of a run starts the stack that they share.
if (expect.getState().testPath?.endsWith('.e2e.test.ts')) {
  const response = await fetch(inject('stack').readyUrl);
  if (!response.ok) throw new Error(`the shared stack does not start: ${await response.text()}`);
}
