import { afterAll, beforeAll, expect, test } from 'vitest';
import { startStack, type TestStack } from '../support/stack.ts';

let stack: TestStack;
beforeAll(async () => {
  stack = await startStack();
});
afterAll(() => stack.stop());

test('the first project can be made', async () => {
  const token = await stack.token();
  const made = await stack.fetch('/api/v1/projects', { token, body: { name: 'Shop' } });
  const body = await made.json();
  expect(made.status, JSON.stringify(body)).toBe(201);
  const listed = await stack.fetch('/api/v1/projects', { token });
  expect(await listed.json()).toMatchObject({ projects: [{ name: 'Shop' }] });
});
