import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { Button } from '../components/button.tsx';
import { ErrorNote } from '../components/feedback.tsx';
import { Icon } from '../components/icon.tsx';
import { TEXT } from '../strings/common.ts';
import type { Me } from './resources.ts';
import { signOut } from './session.ts';

export function AccountMenu({ me }: { me: Me }) {
  const [state, setState] = useState<{ busy: boolean; error: unknown }>({ busy: false, error: null });
  const leave = async () => {
    setState({ busy: true, error: null });
    await signOut().catch((error: unknown) => setState({ busy: false, error }));
  };
  return (
    <div className="row account">
      <Link to="/account" className="button bare" title={TEXT.nav.account}>
        <Icon name="person" />
        <span className="truncate who">{me.email ?? TEXT.nav.account}</span>
      </Link>
      <Button
        look="bare"
        icon="leave"
        className="leave"
        aria-label={TEXT.actions.signOut}
        title={TEXT.actions.signOut}
        busy={state.busy}
        onClick={leave}
      >
        <span>{TEXT.actions.signOut}</span>
      </Button>
      {state.error !== null && <ErrorNote error={state.error} />}
    </div>
  );
}
