import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './stack.ts';

/** Sets the clock of a stack's agent without a change of its program. */
export class AgentClock {
  readonly #folder = temporaryFolder();
  readonly #offsetFile = join(this.#folder, 'offset');

  constructor() {
    copyFileSync(join(import.meta.dirname, 'shifted-clock.ts'), this.#preload);
    this.set(0);
  }

  /** Settings of the stack. Its other parts load the module too, without effect. */
  get env(): Record<string, string> {
    return { NODE_OPTIONS: `--import ${this.#preload}`, CLOCK_OFFSET_FILE: this.#offsetFile };
  }

  /** @param aheadSeconds of this machine's clock; negative for behind */
  set(aheadSeconds: number): void {
    writeFileSync(this.#offsetFile, String(aheadSeconds * 1000));
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** A copy, because the agent's user cannot reach every folder. */
  get #preload(): string {
    return join(this.#folder, 'shifted-clock.ts');
  }
}
