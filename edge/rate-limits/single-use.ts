import type { Env } from '../env.ts';
import { sha256 } from '../sha256.ts';
import { bucketOf } from './buckets.ts';
import { refund } from './consume.ts';
import { isWithinLimit } from './enforce-limit.ts';

type OneTimeKind = Parameters<typeof bucketOf.use>[0];

/** Ensures that a value is used once within an hour. The value is counted under its hash, because it may be a secret. */
export class SingleUse {
  readonly #env: Env;
  readonly #kind: OneTimeKind;
  readonly #value: string;

  constructor(env: Env, kind: OneTimeKind, value: string) {
    this.#env = env;
    this.#kind = kind;
    this.#value = value;
  }

  /** @returns whether this is the first use. @throws ApiError LIMITER_UNAVAILABLE */
  async consume(): Promise<boolean> {
    return isWithinLimit(this.#env, await this.#bucket());
  }

  /** Makes the value usable again. */
  async refund(): Promise<void> {
    await refund(this.#env, await this.#bucket());
  }

  async #bucket() {
    return bucketOf.use(this.#kind, await sha256(this.#value));
  }
}
