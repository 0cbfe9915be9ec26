import { HostError } from '../servers/host-error.ts';

/** One runs, and one waits for its end. */
const OF_PROJECT = 2;
/** Three run at most. */
const OF_HOST = 5;

/**
 * Admits comparisons before they take one of the agent's sessions: calls that wait in a session for their turn would
 * leave none for other operations.
 */
export class ComparisonGate {
  readonly #projects: string[] = [];

  /**
   * @returns a function that ends it
   * @throws HostError PROJECT_BUSY, HOST_BUSY immediately
   */
  enter(projectId: string): () => void {
    if (this.#projects.filter((id) => id === projectId).length >= OF_PROJECT)
      throw new HostError('PROJECT_BUSY', 'another comparison of this project is under way');
    if (this.#projects.length >= OF_HOST)
      throw new HostError('HOST_BUSY', 'too many comparisons are under way');
    this.#projects.push(projectId);
    return () => {
      this.#projects.splice(this.#projects.indexOf(projectId), 1);
    };
  }
}
