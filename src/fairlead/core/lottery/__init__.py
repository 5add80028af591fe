"""Fair lottery: unbiased draws, seeds, pseudonyms, commitments and checks. See README.md."""

from fairlead.core.lottery.draw import SEED_BYTES as SEED_BYTES
from fairlead.core.lottery.draw import Draw as Draw
from fairlead.core.lottery.draw import Odds as Odds
from fairlead.core.lottery.draw import OwnerWeighting as OwnerWeighting
from fairlead.core.lottery.draw import Pot as Pot
from fairlead.core.lottery.draw import Stage as Stage
from fairlead.core.lottery.draw import Tokens as Tokens
from fairlead.core.lottery.draw import first_odds as first_odds
from fairlead.core.lottery.draw import message as message
from fairlead.core.lottery.draw import unfold as unfold
from fairlead.core.lottery.draw import uniform_below as uniform_below
from fairlead.core.lottery.protocol import BeaconRound as BeaconRound
from fairlead.core.lottery.protocol import Commitment as Commitment
from fairlead.core.lottery.protocol import Doubt as Doubt
from fairlead.core.lottery.protocol import Label as Label
from fairlead.core.lottery.protocol import Reveal as Reveal
from fairlead.core.lottery.protocol import check_reveal as check_reveal
from fairlead.core.lottery.protocol import plan_id as plan_id
from fairlead.core.lottery.protocol import reveal as reveal
from fairlead.core.lottery.pseudonym import Pseudonyms as Pseudonyms
from fairlead.core.lottery.seed import derive_seed as derive_seed
from fairlead.core.lottery.seed import entropy_hash as entropy_hash
from fairlead.core.lottery.seed import lp as lp
