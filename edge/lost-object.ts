/** How the runtime marks the error of a call that it has ended. */
interface CallError {
  /** The object was reset, for instance by a deployment. The call may have taken effect. */
  durableObjectReset?: boolean;
  /** The connection to the object was lost. The call may have taken effect. */
  retryable?: boolean;
  /** The object has too many calls. */
  overloaded?: boolean;
}

/**
 * Whether a call failed because its object was lost or is overloaded, and not because of an error of the
 * object itself.
 */
export function isLostObject(error: unknown): boolean {
  const { durableObjectReset, retryable, overloaded } = (error ?? {}) as CallError;
  return Boolean(durableObjectReset || retryable || overloaded);
}

/**
 * Makes an idempotent call of an object, and repeats it once if the object is lost. Other calls are not
 * repeated: their error becomes a 503, after which the client decides.
 * @param call makes a new stub each time, because the stub of a lost object stays broken
 * @throws the error of the last call
 */
export async function repeatIfLost<R>(call: () => Promise<R>): Promise<R> {
  try {
    return await call();
  } catch (error) {
    // A repetition would add to the load.
    if (!isLostObject(error) || (error as CallError).overloaded) throw error;
    return call();
  }
}
