import { expect, test, vi } from 'vitest';
import { isLostObject, repeatIfLost } from '../../edge/lost-object.ts';

/** As the runtime marks them. */
const errorWith = (marks: object) => Object.assign(new Error('of the test'), marks);

test.each([
  [{ durableObjectReset: true }, 2],
  // Of an object that another one called.
  [{ durableObjectReset: true, remote: true }, 2],
  [{ retryable: true }, 2],
  [{ overloaded: true }, 1],
  [{ retryable: true, overloaded: true }, 1],
])('an object is lost with %j, and is called %i times', async (marks, calls) => {
  const error = errorWith(marks);
  const call = vi.fn(() => Promise.reject(error));
  await expect(repeatIfLost(call)).rejects.toBe(error);
  expect(call).toHaveBeenCalledTimes(calls);
  expect(isLostObject(error)).toBe(true);
});

test.each([errorWith({ remote: true }), errorWith({}), 'a text', null])(
  'a call that fails with %s is not repeated',
  async (error) => {
    const call = vi.fn(() => Promise.reject(error));
    await expect(repeatIfLost(call)).rejects.toBe(error);
    expect(call).toHaveBeenCalledTimes(1);
    expect(isLostObject(error)).toBe(false);
  },
);
