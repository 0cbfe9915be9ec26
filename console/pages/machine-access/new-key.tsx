import type { Schemas } from '../../../client/client.ts';
import { Button } from '../../components/button.tsx';
import { Snippet } from '../../components/copy.tsx';
import { Note } from '../../components/feedback.tsx';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';

/** The only time that a key is shown, with where to put it; after a repeated request, what to do without it. */
export const NewKey = ({ made, onClose }: { made: Schemas['CreatedApiKey']; onClose: () => void }) => (
  <section className="card" aria-label={KEYS_TEXT.made(made.name)}>
    <header>
      <h2>{KEYS_TEXT.made(made.name)}</h2>
      <Button compact onClick={onClose}>
        {made.key === null ? TEXT.actions.dismiss : KEYS_TEXT.stored}
      </Button>
    </header>
    <div className="body stack">
      <Note tone="warn">{made.key === null ? KEYS_TEXT.lost : KEYS_TEXT.once}</Note>
      {made.key !== null && (
        <>
          <Snippet code={made.key} label={KEYS_TEXT.copy} />
          <p className="quiet">{KEYS_TEXT.use}</p>
          <Snippet
            code={`curl ${location.origin}/api/v1/projects -H "Authorization: Bearer $BRANCHGATE_TOKEN"`}
            label={TEXT.actions.copyCommand}
          />
        </>
      )}
    </div>
  </section>
);
