import type { Schemas } from '../../../client/client.ts';
import { Button } from '../../components/button.tsx';
import { Snippet } from '../../components/copy.tsx';
import { Note } from '../../components/feedback.tsx';
import { TEXT } from '../../strings.ts';

/** The only time that a key is shown, with where to put it. */
export const NewKey = ({ made, onClose }: { made: Schemas['CreatedApiKey']; onClose: () => void }) => (
  <section className="card" aria-label={TEXT.keys.made(made.name)}>
    <header>
      <h2>{TEXT.keys.made(made.name)}</h2>
      <Button compact onClick={onClose}>
        {TEXT.keys.stored}
      </Button>
    </header>
    <div className="body stack">
      <Note tone="warn">{TEXT.keys.once}</Note>
      <Snippet code={made.key} label={TEXT.keys.copy} />
      <p className="quiet">{TEXT.keys.use}</p>
      <Snippet
        code={`curl ${location.origin}/api/v1/projects -H "Authorization: Bearer $BRANCHGATE_TOKEN"`}
        label={TEXT.actions.copyCommand}
      />
    </div>
  </section>
);
